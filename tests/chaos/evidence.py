"""What a chaos run leaves to see: events as they come, processes that bear its mark, and what is told when it fails."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from disturbances import Disturbance

MARK = "CHAOS_MARK"
"""Every process of a run has it in its environment."""
TAIL = 25


class Log:
    """An event log, read as it grows."""

    def __init__(self, path: Path):
        self.events: list[dict[str, Any]] = []
        self._path, self._read_bytes = path, 0

    def read(self) -> list[dict[str, Any]]:
        """All events so far; a line that is not whole comes later."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                self.events.append(json.loads(line))
        return self.events

    def since(self, unix_s: float) -> list[dict[str, Any]]:
        """Those that came later."""
        return [e for e in self.read() if e["unix_s"] > unix_s]

    def tail(self) -> str:
        """The last lines that tell something; of steps the last one only."""
        told = [e for i, e in enumerate(self.events) if e["event"] != "StepDone" or i == len(self.events) - 1]
        brief = [{k: v for k, v in e.items() if k not in ("arrangement", "traceback", "run")} for e in told[-TAIL:]]
        return "\n".join(map(json.dumps, brief))


def new_mark() -> dict[str, str]:
    """For the environment of all drivers of a run."""
    return {MARK: uuid.uuid4().hex}


def marked(mark: dict[str, str]) -> dict[int, str]:
    """Command lines of the processes that bear a mark, by process id."""
    found = {}
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and f"{MARK}={mark[MARK]}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


@contextmanager
def telling(seed: int, strikes: tuple[Disturbance, ...], log: Log) -> Iterator[None]:
    """Whatever fails inside says under which seed, with which script, and what the controller saw last."""
    print(f"CHAOS_SEED={seed}: {', '.join(s.what if s.after_s else f'{s.what} at once' for s in strikes)}", flush=True)
    try:
        yield
    except BaseException as error:
        log.read()
        error.add_note(f"CHAOS_SEED={seed}\n" + "\n".join(map(str, strikes)) + f"\nthe last events:\n{log.tail()}")
        raise
