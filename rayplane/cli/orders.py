"""`rayplane pause`, `resume`, `stop` and `scale`: orders to a job that runs."""

from __future__ import annotations

from typing import Annotated

import typer

from rayplane.cli.ordering import TIMEOUT_S, JobArgument, JsonOption, TimeoutOption, give
from rayplane.control.order import Order

DevicesOption = Annotated[int, typer.Option("--devices", min=1, help="Of a job that trains: go on with at most so many.")]


def pause(job: JobArgument, json: JsonOption = False, timeout: TimeoutOption = TIMEOUT_S) -> None:
    """Save a training job after its current step and give its devices back. Its driver waits for resume, or for stop."""
    give(job, Order("pause"), json, timeout)


def resume(job: JobArgument, json: JsonOption = False, timeout: TimeoutOption = TIMEOUT_S) -> None:
    """Let a paused job go on, as soon as there are devices for it."""
    give(job, Order("resume"), json, timeout)


def stop(
    job: JobArgument,
    now: Annotated[bool, typer.Option("--now", help="Do not save, or finish what runs.")] = False,
    json: JsonOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Save a training job after its current step and end its run, or let a service finish what runs; wait for that."""
    give(job, Order("kill" if now else "stop"), json, timeout)


def scale(job: JobArgument, devices: DevicesOption, json: JsonOption = False, timeout: TimeoutOption = TIMEOUT_S) -> None:
    """Move a training job to the best layout for so many devices; with a layout in the job, to another number of replicas."""
    give(job, Order("scale", devices), json, timeout)
