"""`state.json` in a job's folder: where the job stands, for whoever looks from outside. Replaced by rename, never half written."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rayplane.control.state import (
    Arrangement,
    Draining,
    Failed,
    Finished,
    Killing,
    Paused,
    Pending,
    Placing,
    Replanning,
    Running,
    Starting,
    State,
)
from rayplane.errors import RayplaneError

STATUS_FILE = "state.json"
EVENTS_FILE = "events.jsonl"


@dataclass(frozen=True, slots=True)
class Status:
    """What `rayplane status` shows of a job."""

    name: str
    state: str
    step: int
    steps: int
    loss: float | None
    tokens_per_s: float
    layout: str
    restarts: int
    checkpoint: str
    message: str
    pid: int
    host: str
    updated_unix_s: float
    model: dict[str, Any]
    """The numbers of the model, to refuse another one in this folder."""
    holdout_before: float | None = None
    """Held-out loss before the first step, kept over restarts and resumed runs."""


_READER = TypeAdapter(Status)


def state_name(state: State) -> str:
    """A state in one word."""
    match state:
        case Pending():
            return "pending"
        case Placing():
            return "placing"
        case Starting():
            return "starting"
        case Running():
            return "running"
        case Draining(then="pause") | Killing(then="pause"):
            return "pausing"
        case Draining(then=Arrangement()):
            return "moving"
        case Draining():
            return "draining"
        case Replanning():
            return "replanning"
        case Paused():
            return "paused"
        case Killing(then="retry"):
            return "restarting"
        case Killing():
            return "stopping"
        case Finished(drained=True):
            return "drained"
        case Finished():
            return "finished"
        case Failed():
            return "failed"


def write_json(path: Path, value: Any) -> None:
    """Write aside and rename."""
    aside = path.with_name(f"{path.name}.tmp")
    aside.write_text(json.dumps(value, indent=1) + "\n")
    aside.replace(path)


def write_status(directory: Path, status: Any) -> None:
    """Replace the folder's state.json."""
    write_json(directory / STATUS_FILE, asdict(status))


def read_status(directory: Path) -> Status | None:
    """The folder's state.json, or None where it has none. Raises RayplaneError where it is not ours."""
    path = directory / STATUS_FILE
    if not path.is_file():
        return None
    try:
        return _READER.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else _first_fault(error)
        raise RayplaneError(f"{path} is not a job's state ({reason}); remove it, or choose another folder") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False)[0]
    return ": ".join([*map(str, fault["loc"]), fault["msg"]])


def ended(state: str) -> bool:
    """Whether the job's last controller ended it in order."""
    return state in {"drained", "finished", "stopped", "failed"}


def this_process() -> tuple[int, str]:
    """(pid, host) of the controller."""
    return os.getpid(), os.uname().nodename
