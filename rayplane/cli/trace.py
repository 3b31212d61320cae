"""`rayplane trace`: a step over time, as it is planned and as it was measured; or what a schedule looks like.

zb-h1, 2 stages, 4 microbatches: step 13.00 s, bubble 7.7%
0  F0-F1-...I0-W0-F2-I1-W1-F3-I2-W2-I3-W3-
1  ...F0-I0-F1-I1-W0-F2-I2-W1-F3-I3-W2-W3-
"""

from __future__ import annotations

from itertools import zip_longest
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rayplane.cli.drawn import draw, rows_of
from rayplane.cli.screen import say, screen, show
from rayplane.cli.timelines import Measured, Planned, alone, busy_s, in_flight, lanes, measured, planned
from rayplane.cli.words import as_json, share
from rayplane.errors import RayplaneError, SpecError
from rayplane.plan.choice.report import seconds
from rayplane.plan.step.timeline import Timeline
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout, unsupported
from rayplane.spec.load import load_training
from rayplane.telemetry.chrome import chrome
from rayplane.telemetry.picture import Rows, scale
from rayplane.telemetry.trace import Step, read

STAGES, MICROBATCHES, VPP = 4, 8, {"interleaved": 2, "zbv": 2}
GAP = 2
"""Columns between a stage's number and its row."""


def trace(
    job: Annotated[Path | None, typer.Argument(help="A job file; or give --schedule.")] = None,
    schedule: Annotated[str | None, typer.Option(help=f"Draw a schedule alone: {', '.join(BUILDERS)}.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, max=64, help=f"Its stages; {STAGES} by default.")] = None,
    microbatches: Annotated[int | None, typer.Option(min=1, max=512, help=f"Its microbatches; {MICROBATCHES} by default.")] = None,
    vpp: Annotated[int | None, typer.Option(min=1, max=8, help="Its chunks a stage; the fewest by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a file for ui.perfetto.dev or chrome://tracing.")] = None,
    width: Annotated[int | None, typer.Option(min=20, max=100_000, help="Columns; by default those of the terminal.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw a job's step as planned and, where train.trace had it recorded, as measured; or a schedule alone, F, I and W taking 1 s."""
    recorded, notes = list[Step](), list[str]()
    if job is None:
        plan = alone(_layout(schedule, pp or STAGES, vpp), microbatches or MICROBATCHES)
    elif schedule or pp or microbatches or vpp:
        raise SpecError("--schedule, --pp, --microbatches and --vpp draw a schedule without a job; give either them or a job file")
    else:
        spec = load_training(job, "trace")
        plan = planned(spec)
        recorded, notes = read(Path(spec.train.checkpoint.dir).expanduser())
    seen = measured(recorded[-1]) if recorded else None
    if out is not None:
        _write(out, dumps(chrome(lanes(plan, recorded))))
    if json:
        typer.echo(as_json(_figures(plan, seen)))
    else:
        _show(screen(), plan, seen, width)
    for note in notes:
        say(screen(stderr=True), f"note: {note}")


def _layout(schedule: str | None, pp: int, vpp: int | None) -> Layout:
    known = ", ".join(BUILDERS)
    if schedule is None:
        raise SpecError(f"give a job file, or with --schedule one of {known}")
    if schedule not in BUILDERS:
        raise SpecError(f"--schedule {schedule}: there is no such schedule; use one of {known}")
    layout = Layout(pp=pp, schedule=schedule, vpp=vpp or VPP.get(schedule, 1))
    if problems := unsupported(layout):
        raise SpecError("\n".join(f"--{field}: {reason}" for field, reason in problems))
    return layout


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise RayplaneError(f"--out: cannot write {path}: {error.strerror}") from error


def _figures(plan: Planned, seen: Measured | None) -> dict[str, Any]:
    held = [{"in_flight": whole, "waiting_for_weights": half} for whole, half in in_flight(plan.schedule)]
    stages = [{**of, **h} for of, h in zip(_stages(plan.timeline), held, strict=True)]
    figures: dict[str, Any] = {
        "layout": str(plan.layout),
        "schedule": plan.layout.schedule,
        "microbatches": plan.schedule.num_microbatches,
        "planned": {"step_s": plan.timeline.end_s, "bubble": plan.timeline.bubble, "stages": stages},
        "measured": None,
    }
    if seen is not None:
        of = {"layout": str(seen.layout), "step": seen.step, "replica": seen.replica}
        figures["measured"] = {
            **of,
            "step_s": seen.timeline.end_s,
            "bubble": seen.timeline.bubble,
            "stages": _stages(seen.timeline),
            "accuracy_s": seen.accuracy_s,
        }
    return figures


def _stages(timeline: Timeline) -> list[dict[str, Any]]:
    pipe_s = max(timeline.compute_end_s)
    return [{"stage": s, "busy_s": busy, "bubble": 1 - busy / pipe_s} for s, busy in enumerate(busy_s(timeline))]


def _show(console: Console, plan: Planned, seen: Measured | None, width: int | None) -> None:
    rows = rows_of(plan.timeline)
    columns = (width or console.width) - max(map(len, rows)) - GAP
    longest = rows if seen is None else max(rows, rows_of(seen.timeline), key=_end_s)
    columns_per_s = scale(longest, columns)
    say(console, f"{plan.title}: {_summary(plan.timeline)}")
    draw(console, rows, columns_per_s)
    if seen is not None:
        other = "" if seen.layout == plan.layout else f" under {seen.layout}"
        replica = f", replica {seen.replica}" if seen.layout.dp > 1 else ""
        say(console, f"measured in step {seen.step}{other}{replica}: {_summary(seen.timeline)}")
        draw(console, rows_of(seen.timeline), columns_per_s)
        if seen.accuracy_s:
            say(console, f"note: times of one host beside those of another are right to {seconds(seen.accuracy_s)}")
    show(console, _table(plan, seen))


def _end_s(rows: Rows) -> float:
    return max(row[-1].end_s for row in rows.values())


def _summary(timeline: Timeline) -> str:
    return f"step {seconds(timeline.end_s)}, bubble {share(timeline.bubble)}"


def _table(plan: Planned, seen: Measured | None) -> Table:
    both = [_stages(t) for t in (plan.timeline, *([seen.timeline] if seen else []))]
    names = ("busy", "bubble") if seen is None else ("busy, planned", "measured", "bubble, planned", "measured")
    table = Table("stage", *names, "in flight", box=None)
    for column in table.columns:
        column.justify = "right"
    held = [f"{whole} + {half} for W" if half else str(whole) for whole, half in in_flight(plan.schedule)]
    busy = [[seconds(s["busy_s"]) for s in stages] for stages in both]
    bubble = [[share(s["bubble"]) for s in stages] for stages in both]
    for stage, cells in enumerate(zip_longest(*busy, *bubble, held, fillvalue="-")):
        table.add_row(str(stage), *cells)
    return table
