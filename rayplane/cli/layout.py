"""`rayplane layout set` and `rayplane layout show`: how a running job lies on its devices.

$ rayplane layout set runs/demo tp=2 micro_batch=4
demo: it trains from step 120 under tp2 mb4
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rayplane.cli.ordering import TIMEOUT_S, JobArgument, JsonOption, TimeoutOption, give, standing
from rayplane.cli.screen import say, screen, show
from rayplane.cli.status import job_folder
from rayplane.cli.words import as_json
from rayplane.control.event_log import read_log
from rayplane.control.order import Order
from rayplane.control.replay import replayed
from rayplane.control.service_status import ServiceStatus
from rayplane.control.state import NOWHERE, Arrangement
from rayplane.control.status import EVENTS_FILE
from rayplane.errors import RayplaneError
from rayplane.spec.layout_words import layout_of

LayoutArgument = Annotated[list[str], typer.Argument(metavar="FIELD=VALUE...", help="As in the job's layout: tp=2 pp=2 boundaries=5,3")]


def layout_set(job: JobArgument, fields: LayoutArgument, json: JsonOption = False, timeout: TimeoutOption = TIMEOUT_S) -> None:
    """Move a training job to another layout: save, lay it out anew, go on. What is left out is 1, or chosen by the planner."""
    give(job, Order("layout", layout=layout_of(fields)), json, timeout)


def layout_show(job: JobArgument, json: JsonOption = False) -> None:
    """Show a training job's layout, and where its stages are planned to lie."""
    folder = job_folder(job)
    status = standing(folder)
    if isinstance(status, ServiceStatus):
        raise RayplaneError(f"{status.name} serves; rayplane status shows the layout of its replicas")
    arrangement = _newest(folder)
    if json:
        typer.echo(as_json(_object(status.name, arrangement)))
        return
    say(screen(), f"{status.name}: {arrangement.layout}, {arrangement.step_s * 1e3:.4g} ms a step as planned")
    show(screen(), _table(arrangement))


def _newest(folder: Path) -> Arrangement:
    """Where the last run of a folder came to lie."""
    turns = replayed(read_log(folder / EVENTS_FILE)[-1])
    arrangement = turns[-1].state.progress.arrangement if turns else NOWHERE
    if arrangement == NOWHERE:
        raise RayplaneError(f"{folder} was not laid out: its last run ended before")
    return arrangement


def _object(name: str, arrangement: Arrangement) -> dict[str, Any]:
    layout = {**asdict(arrangement.layout), "boundaries": list(arrangement.layout.boundaries)}
    slots = [asdict(slot) for slot in arrangement.placement.slots]
    return {"name": name, "layout": layout, "step_s": arrangement.step_s, "slots": slots}


def _table(arrangement: Arrangement) -> Table:
    table = Table("replica", "stage", "ranks", "node", "island", box=None)
    for slot in arrangement.placement.slots:
        table.add_row(str(slot.replica), str(slot.stage), " ".join(map(str, slot.ranks)), slot.node, slot.island)
    return table
