"""What `rayplane explain` prints, section by section; bars are to scale within their table."""

from __future__ import annotations

from itertools import groupby
from textwrap import fill

from rich.console import Console
from rich.table import Table

from rayplane.cli.drawn import draw, rows_of
from rayplane.cli.screen import say, show
from rayplane.cli.words import count, share
from rayplane.plan.choice.report import seconds, size
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.why.explanation import Axis, Explanation, Point, StageShare, Sweep
from rayplane.telemetry.picture import scale

RUNNERS_UP = 6
BAR = 40
"""Columns of the longest bar."""
NOTHING = 1e-6
"""A smaller share of the step is not shown."""
DRAWN_STAGES = 16
BEFORE_ROW = 6
"""Columns that the number of a stage takes, at most."""


def show_explanation(console: Console, told: Explanation) -> None:
    """Everything."""
    for section in (_head, _winner, _runners_up, _axes, _stages, _timeline, _sweeps, _what_ifs, _answers):
        section(console, told)
    say(console, "")
    _paragraph(console, f"figures {told.figures}", indent=0)


def _head(console: Console, told: Explanation) -> None:
    say(console, told.name)
    for name, text in (("model", told.model), ("cluster", told.cluster)):
        _paragraph(console, f"{name}: {text}", indent=2)


def _winner(console: Console, told: Explanation) -> None:
    e, best = told.plan.estimate, told.waterfalls[0]
    facts = f"{seconds(e.step_s)} a step, {count(e.tokens_s)} tokens/s, MFU {share(e.mfu)}, {gigabytes(e.memory_bytes)}, {e.verdict}"
    say(console, f"\nchosen: {told.plan.layout}\n  {facts}")
    table = _table("term", "time", "share", "")
    longest = max(value for _, value in best.terms)
    for term, value in best.terms:
        if value > NOTHING * best.step_s:
            table.add_row(term, seconds(value), share(value / best.step_s), _bar(value, longest))
    show(console, table)


def _runners_up(console: Console, told: Explanation) -> None:
    others = told.waterfalls[1:]
    if not others:
        say(console, "\nno other layout was priced: the job gives this one, or nothing else is possible")
        return
    say(console, "\nlost")
    table = Table("layout", "step", "memory", "because", box=None)
    for other in others[:RUNNERS_UP]:
        table.add_row(str(other.layout), seconds(other.step_s), gigabytes(other.memory_bytes), other.lost_because)
    show(console, table)
    if len(others) > RUNNERS_UP:
        say(console, f"  and {len(others) - RUNNERS_UP} more; --json has them all")


def _axes(console: Console, told: Explanation) -> None:
    if not told.axes:
        say(console, "\none rank: nothing is sent")
        return
    say(console, "\naxes, innermost first; times of a step on the slowest stage")
    table = _table("axis", "ranks", "link", "GB/s", "sent", "alone", "exposed", "compute", "bound by")
    for axis in told.axes:
        times = [seconds(s) for s in (axis.comm_s, axis.exposed_s, axis.compute_s)]
        table.add_row(axis.name, str(axis.size), axis.link, f"{axis.gbytes_s:.3g}", size(_sent(axis)), *times, axis.bound)
    show(console, table)
    for axis in told.axes:
        _paragraph(console, f"{axis.name}: {axis.arithmetic}", indent=2)
        for traffic in axis.traffic:
            _paragraph(console, f"{traffic.what}: {traffic.arithmetic}", indent=4)


def _sent(axis: Axis) -> int:
    return sum(traffic.sent_bytes for traffic in axis.traffic)


def _stages(console: Console, told: Explanation) -> None:
    say(console, "\nmemory by stage")
    names = [name for name, _ in told.stages[0].memory]
    table = _table("stage", "layers", "device", "a microbatch", *names, "in all", "of", "")
    for _, alike in groupby(told.stages, key=lambda s: (s.layers, s.kind, s.compute_s, s.memory)):
        same = list(alike)
        stage, last = same[0], same[-1].stage
        which = str(stage.stage) if last == stage.stage else f"{stage.stage}-{last}"
        table.add_row(which, *_of_stage(stage))
    show(console, table)


def _of_stage(stage: StageShare) -> list[str]:
    terms = [gigabytes(n) if n else "-" for _, n in stage.memory]
    whole = f"{gigabytes(stage.memory_bytes)}", gigabytes(stage.capacity_bytes), share(stage.memory_bytes / stage.capacity_bytes)
    return ["+".join(map(str, stage.layers)), stage.kind, seconds(stage.compute_s), *terms, *whole]


def _timeline(console: Console, told: Explanation) -> None:
    m, shown = told.plan.num_microbatches, told.shown_microbatches
    first = f" of its first {shown} microbatches" if shown < m else ""
    say(console, f"\nthe step{first} in simulated time: a row a stage, F forward, B backward, dots idle")
    rows = rows_of(told.timeline)
    drawn = {name: row for name, row in rows.items() if int(name) < DRAWN_STAGES}
    draw(console, drawn, scale(rows, console.width - BEFORE_ROW))
    if hidden := len(rows) - len(drawn):
        say(console, f"  and {hidden} more stages")


def _sweeps(console: Console, told: Explanation) -> None:
    for sweep in told.sweeps:
        say(console, f"\n{sweep.question}")
        show(console, _sweep(sweep))
        _paragraph(console, sweep.finding, indent=2)


def _sweep(sweep: Sweep) -> Table:
    longest = max((p.step_s for p in sweep.points if p.step_s is not None), default=0.0)
    bubbles, memory = (any(getattr(p, name) for p in sweep.points) for name in ("bubble", "memory_bytes"))
    table = _table("", sweep.y_name, *(["bubble"] if bubbles else []), *(["memory"] if memory else []), "", "")
    for p in sweep.points:
        cells = [share(p.bubble) if p.bubble is not None else "-"] if bubbles else []
        cells += [gigabytes(p.memory_bytes) if p.memory_bytes else "-"] if memory else []
        table.add_row(p.label, seconds(p.step_s) if p.step_s is not None else "-", *cells, _length(p, longest), p.note)
    return table


def _length(p: Point, longest: float) -> str:
    return _bar(p.step_s, longest) if p.step_s is not None else ""


def _what_ifs(console: Console, told: Explanation) -> None:
    for asked in told.what_ifs:
        say(console, f"\nwhat if {asked.change}: {asked.meaning}")
        _paragraph(console, asked.finding, indent=2)


def _answers(console: Console, told: Explanation) -> None:
    say(console, "")
    for answer in told.answers:
        say(console, f"{answer.number:>2}. {answer.question}")
        _paragraph(console, answer.text, indent=4)


def _paragraph(console: Console, text: str, indent: int) -> None:
    """Wrapped between words."""
    margin = " " * indent
    say(console, fill(text, console.width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False))


def _table(*headers: str) -> Table:
    """Numbers to the right, the first column and bars to the left."""
    table = Table(*headers, box=None)
    for column in table.columns[1:]:
        column.justify = "right" if column.header else "left"
    return table


def _bar(value: float, longest: float) -> str:
    return "█" * max(1, round(BAR * value / longest)) if longest else ""
