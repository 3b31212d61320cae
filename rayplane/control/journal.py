"""What a controller leaves in its job's folder: `events.jsonl`, one line per event, and `state.json`, at most once a second.

{"unix_s": 1764444444.1, "event": "StepDone", "step": 7, "loss": 2.5, "state": "running"}        how it is read back: event_log.py

A disk that is full costs lines of the journal, never the job: what the ranks can still save decides.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rayplane.control.event import Event, StepDone
from rayplane.control.event_log import Shorthand
from rayplane.control.service_state import ServiceEvent
from rayplane.control.service_status import ServiceStatus
from rayplane.control.status import EVENTS_FILE, Status, write_status
from rayplane.errors import RayplaneError

STATUS_EVERY_S = 1.0

log = logging.getLogger(__name__)


class Journal:
    """Writes one job's event log and state. `unix_s` is the caller's clock."""

    def __init__(self, directory: Path, field: str = "train.checkpoint.dir", opening: dict[str, Any] | None = None):
        """`field` is the one of the job that names the folder; `opening` stands in the first line of the run.

        RayplaneError where nothing can be written there.
        """
        self._directory = directory
        self._shorthand, self._opening = Shorthand(), {"run": opening} if opening else {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            _mend(directory / EVENTS_FILE)
            self._events = (directory / EVENTS_FILE).open("a", buffering=1)
        except OSError as error:
            raise RayplaneError(f"{field}: cannot write to {error.filename}: {error.strerror}") from error
        self._written_unix_s = 0.0
        self._failed = False

    def event(self, state: str, event: Event | ServiceEvent, unix_s: float) -> None:
        """Append an event and the name of the state that it led to."""
        line = {"unix_s": round(unix_s, 3), "event": type(event).__name__, **self._shorthand.written(event), "state": state}
        line, self._opening = {**line, **self._opening}, {}
        with self._forgiving():
            self._events.write(json.dumps(line) + "\n")

    def due(self, unix_s: float) -> bool:
        """Whether a status would be written that need not be at once."""
        return unix_s - self._written_unix_s >= STATUS_EVERY_S

    def status(self, status: Status | ServiceStatus, at_once: bool) -> None:
        """Replace state.json; at most once a second where it need not be at once."""
        if not at_once and not self.due(status.updated_unix_s):
            return
        self._written_unix_s = status.updated_unix_s
        with self._forgiving():
            write_status(self._directory, status)

    def close(self) -> None:
        """Close the log."""
        with self._forgiving():
            self._events.close()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._failed:
                log.warning("%s: %s; the job goes on", self._directory, error.strerror)
            self._failed = True


def _mend(path: Path) -> None:
    """Take away a last line that an earlier controller left half written, or ours would go on in it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        if not file.seek(0, os.SEEK_END):
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def loss_of(directory: Path, step: int) -> float | None:
    """The loss that a step had when it was last done in a job's folder; None where its journal does not say."""
    try:
        with (directory / EVENTS_FILE).open() as events:
            lines = [line for line in events if f'"step": {step},' in line]
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            event = json.loads(line)
            if event["event"] == StepDone.__name__ and event["step"] == step:
                return float(event["loss"])
    return None
