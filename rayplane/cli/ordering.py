"""How a command gives an order to a running job: it leaves it in the job's folder, and waits for the answer.

no driver lives               refused at once, with where the job stands
answered                      said, with exit code 0, or refused, with 1
not answered within TIMEOUT   taken back if it was not taken yet
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rayplane.cli.status import job_folder
from rayplane.cli.words import as_json
from rayplane.control.lock import held
from rayplane.control.mailbox import Mailbox
from rayplane.control.order import Answer, Order
from rayplane.control.service_status import ServiceStatus, read_service
from rayplane.control.status import Status, ended, read_status
from rayplane.errors import RayplaneError

WAIT_S = 0.1
TIMEOUT_S = 600.0

JobArgument = Annotated[Path, typer.Argument(help="A job file or a job's folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait for the order to be carried out.")]


def give(job: Path, order: Order, json: bool, timeout_s: float) -> None:
    """Give an order and print what came of it. RayplaneError where it was refused."""
    folder = job_folder(job)
    status = standing(folder)
    answer = _carried_out(folder, status, order, time.monotonic() + timeout_s)
    if not answer.done:
        raise RayplaneError(f"{status.name}: {answer.message}")
    if json:
        typer.echo(as_json(_object(folder, order, answer)))
    else:
        typer.echo(f"{status.name}: {answer.message}")


def standing(folder: Path) -> Status | ServiceStatus:
    """Where the job of a folder stands."""
    status = read_service(folder) or read_status(folder)
    assert status is not None, "the folder was chosen for its state"
    return status


def _object(folder: Path, order: Order, answer: Answer) -> dict[str, Any]:
    status = standing(folder)
    return {"name": status.name, "directory": str(folder), "order": order.verb, "message": answer.message, "state": status.state}


def _carried_out(folder: Path, status: Status | ServiceStatus, order: Order, end_s: float) -> Answer:
    if isinstance(status, ServiceStatus) and order.verb not in ("stop", "kill"):
        more = "its number of replicas follows the load, within serve.replicas" if order.verb == "scale" else "it can be stopped"
        raise RayplaneError(f"{status.name}: a job that serves cannot be given this order; {more}")
    if not held(folder):
        state = status.state if ended(status.state) else "lost"
        again = "" if state == "finished" else "; rayplane run goes on with it"
        raise RayplaneError(f"{status.name}: no driver runs this job, it is {state}{again}")
    mailbox = Mailbox(folder)
    key = mailbox.put(order)
    try:
        answer = _awaited(folder, mailbox, key, end_s)
    finally:
        taken = not mailbox.withdraw(key)
    if answer is None and not held(folder):
        raise RayplaneError(f"{status.name}: its driver has ended, and did not answer; see rayplane status")
    if answer is None:
        outlook = "it is being carried out, see rayplane status" if taken else "it was not taken, and is withdrawn"
        raise RayplaneError(f"{status.name}: the driver did not answer the order in time; {outlook}")
    if order.verb in ("stop", "kill"):
        while held(folder) and time.monotonic() < end_s:
            time.sleep(WAIT_S)  # so that who runs it again does not meet the driver that is about to leave
    return answer


def _awaited(folder: Path, mailbox: Mailbox, key: str, end_s: float) -> Answer | None:
    """The answer; None where it did not come in time, or nobody is left to give it."""
    while True:
        alive = held(folder)
        if answer := mailbox.answer(key):
            return answer
        if not alive or time.monotonic() >= end_s:
            return None
        time.sleep(WAIT_S)
