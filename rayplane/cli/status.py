"""`rayplane status`: where jobs stand, read from their folders; nothing is asked of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rayplane.cli.screen import screen, show
from rayplane.cli.serving import service_folder
from rayplane.cli.words import as_json, count, duration, loss, share
from rayplane.control.lock import held
from rayplane.control.service_status import KIND, ServiceStatus, read_service
from rayplane.control.status import STATUS_FILE, Status, ended, read_status
from rayplane.errors import RayplaneError
from rayplane.spec.job import TrainJob
from rayplane.spec.load import load_job

RUNS = Path("runs")


def status(
    job: Annotated[Path | None, typer.Argument(help="A job file or a job's folder; by default every job under ./runs.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for JOB, else a list.")] = False,
) -> None:
    """Show where jobs stand: step, loss and checkpoint, or replicas and load; and whether a driver lives."""
    folders = [job_folder(job)] if job else sorted(path.parent for path in RUNS.glob(f"*/{STATUS_FILE}"))
    found, unreadable = _look_at(folders)
    for error in unreadable:
        typer.echo(str(error), err=True)
    if json and not (job and unreadable):
        typer.echo(as_json(found[0] if job else found))
    elif found:
        for table in _tables(found):
            show(screen(), table)
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


def job_folder(job: Path) -> Path:
    """The folder that a job file, or a folder's own name, means. RayplaneError where it holds no job."""
    folder = job if job.is_dir() else _folder_of(job)
    if not (folder / STATUS_FILE).is_file():
        raise RayplaneError(f"{folder} holds no job: there is no {STATUS_FILE}; start one with rayplane run")
    return folder


def _folder_of(file: Path) -> Path:
    job = load_job(file)
    return Path(job.train.checkpoint.dir).expanduser() if isinstance(job, TrainJob) else service_folder(job)


def _look(folder: Path) -> dict[str, Any]:
    status: Status | ServiceStatus | None = read_service(folder) or read_status(folder)
    assert status is not None, "the folder was chosen for its state"
    alive, values = held(folder), asdict(status)
    if isinstance(status, Status):
        values.pop("model")
    return {
        "directory": str(folder),
        **values,
        "state": status.state if alive or ended(status.state) else "lost",
        "driver_alive": alive,
        "age_s": round(time.time() - status.updated_unix_s, 1),
    }


def _tables(found: list[dict[str, Any]]) -> list[Table]:
    """Of the jobs that train, and of those that serve and their replicas."""
    services = [job for job in found if job.get("kind") == KIND]
    training = [job for job in found if job not in services]
    tables = [_training(training)] if training else []
    return [
        *tables,
        *([_services(services)] if services else []),
        *([_replicas(services)] if any(job["replicas"] for job in services) else []),
    ]


def _services(found: list[dict[str, Any]]) -> Table:
    table = Table(
        "job", "state", "replicas", "running", "waiting", "tokens/s", "requests/s", "first, then (p99)", "address", "driver", box=None
    )
    for job in found:
        serving = sum(replica["phase"] == "serving" for replica in job["replicas"])
        figures = (job["running"], job["waiting"], count(job["output_tokens_s"]), f"{job['requests_s']:.3g}")
        times = f"{_seconds(job['ttft_p99_s'])}, {_seconds(job['itl_p99_s'])}"
        state = f"{job['state']}, moves to {job['layout']}" if job["moving"] else job["state"]
        table.add_row(job["name"], state, f"{serving}/{job['wanted']}", *map(str, figures), times, _listed(job["urls"]), _driver(job))
    return table


def _replicas(found: list[dict[str, Any]]) -> Table:
    table = Table("job", "replica", "phase", "health", "layout", "running", "waiting", "cache used", "address", box=None)
    for job in found:
        for r in job["replicas"]:
            figures = (r["layout"] or job["layout"], r["running"], r["waiting"], share(r["kv_usage"]))
            table.add_row(job["name"], str(r["id"]), r["phase"], r["health"] or "-", *map(str, figures), r["address"] or "-")
    return table


def _listed(urls: Sequence[str]) -> str:
    return ", ".join(urls) or "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _driver(job: dict[str, Any]) -> str:
    driver = f"pid {job['pid']} on {job['host']}" if job["driver_alive"] else "gone"
    return f"{driver}, {duration(job['age_s'])} ago"


def _training(found: list[dict[str, Any]]) -> Table:
    table = Table("job", "state", "step", "loss", "tokens/s", "layout", "restarts", "last checkpoint", "driver", box=None)
    for job in found:
        table.add_row(
            job["name"],
            job["state"],
            f"{job['step']}/{job['steps']}",
            loss(job["loss"]),
            count(job["tokens_per_s"]) if job["tokens_per_s"] else "-",
            job["layout"],
            str(job["restarts"]),
            Path(job["checkpoint"]).name or "-",
            _driver(job),
        )
    return table
