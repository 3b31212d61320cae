"""`state.json` of a service: where it stands, for whoever looks from outside.

{"name": "smollm2", "state": "serving", "urls": ["http://127.0.0.1:8000"], "replicas": [{"id": 0, "phase": "serving", …}], …}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from rayplane.control.service_state import Service
from rayplane.control.status import STATUS_FILE
from rayplane.errors import RayplaneError

KIND = "serves"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica."""

    id: int
    phase: str
    address: str
    health: str
    """As ingresses see it: connecting, live, leaving or lost; empty before they have looked."""
    running: int
    waiting: int
    kv_usage: float
    layout: str = ""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What `rayplane status` shows of a job that serves."""

    name: str
    state: str
    """starting, serving, stopping, drained, stopped or failed."""
    urls: tuple[str, ...]
    model: str
    layout: str
    """Of a replica that starts now; in a move that to which it goes."""
    wanted: int
    replicas: tuple[ReplicaStatus, ...]
    requests_s: float
    output_tokens_s: float
    ttft_p99_s: float | None
    itl_p99_s: float | None
    running: int
    waiting: int
    restarts: int
    message: str
    pid: int
    host: str
    updated_unix_s: float
    kind: Literal["serves"] = "serves"
    moving: bool = False
    """Whether replicas of one layout take the place of those of another."""
    moves: int = 0
    """To other layouts."""
    moves_given_up: int = 0


_READER = TypeAdapter(ServiceStatus)


def service_state(service: Service) -> str:
    """A service that has not ended, in one word."""
    if service.stopping:
        return "stopping"
    return "serving" if any(replica.phase == "serving" for replica in service.replicas) else "starting"


def read_service(directory: Path) -> ServiceStatus | None:
    """The folder's state.json; None where it has none, or that of a job that trains. RayplaneError where it is damaged."""
    path = directory / STATUS_FILE
    try:
        known = json.loads(path.read_bytes()) if path.is_file() else {}
        return _READER.validate_python(_tupled(known)) if isinstance(known, dict) and known.get("kind") == KIND else None
    except (OSError, ValueError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise RayplaneError(f"{path} is not a job's state ({reason}); remove it, or choose another folder") from error


def _tupled(known: dict[str, object]) -> dict[str, object]:
    """JSON has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
