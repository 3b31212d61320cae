"""`rayplane status`: where jobs stand, read from their folders; nothing is asked of a cluster."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rayplane.cli.screen import screen, show
from rayplane.cli.words import as_json, count, duration, loss
from rayplane.control.lock import held
from rayplane.control.status import STATUS_FILE, ended, read_status
from rayplane.errors import RayplaneError
from rayplane.spec.load import load_job

RUNS = Path("runs")


def status(
    job: Annotated[Path | None, typer.Argument(help="A job file or a job's folder; by default every job under ./runs.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for JOB, else a list.")] = False,
) -> None:
    """Show where jobs stand: step, loss, throughput, layout, restarts, last checkpoint, and whether a driver lives."""
    folders = [_folder(job)] if job else sorted(path.parent for path in RUNS.glob(f"*/{STATUS_FILE}"))
    found, unreadable = _look_at(folders)
    for error in unreadable:
        typer.echo(str(error), err=True)
    if json and not (job and unreadable):
        typer.echo(as_json(found[0] if job else found))
    elif found:
        show(screen(), _table(found))
    elif not folders:
        typer.echo(f"no jobs under {RUNS.absolute()}")
    if unreadable:
        raise typer.Exit(RayplaneError.exit_code)


def _look_at(folders: list[Path]) -> tuple[list[dict[str, Any]], list[RayplaneError]]:
    """What stands in the folders, and in which it could not be read: one damaged folder does not hide the others."""
    found, unreadable = [], []
    for folder in folders:
        try:
            found.append(_look(folder))
        except RayplaneError as error:
            unreadable.append(error)
    return found, unreadable


def _folder(job: Path) -> Path:
    folder = job if job.is_dir() else Path(load_job(job).train.checkpoint.dir).expanduser()
    if not (folder / STATUS_FILE).is_file():
        raise RayplaneError(f"{folder} holds no job: there is no {STATUS_FILE}; start one with rayplane run")
    return folder


def _look(folder: Path) -> dict[str, Any]:
    status = read_status(folder)
    assert status is not None, "the folder was chosen for its state"
    alive = held(folder)
    values = asdict(status)
    values.pop("model")
    return {
        "directory": str(folder),
        **values,
        "state": status.state if alive or ended(status) else "lost",
        "driver_alive": alive,
        "age_s": round(time.time() - status.updated_unix_s, 1),
    }


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("job", "state", "step", "loss", "tokens/s", "layout", "restarts", "last checkpoint", "driver", box=None)
    for job in found:
        driver = f"pid {job['pid']} on {job['host']}" if job["driver_alive"] else "gone"
        table.add_row(
            job["name"],
            job["state"],
            f"{job['step']}/{job['steps']}",
            loss(job["loss"]),
            count(job["tokens_per_s"]) if job["tokens_per_s"] else "-",
            job["layout"],
            str(job["restarts"]),
            Path(job["checkpoint"]).name or "-",
            f"{driver}, {duration(job['age_s'])} ago",
        )
    return table
