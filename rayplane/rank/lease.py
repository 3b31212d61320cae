"""A rank's share of the right to write into its job's folder; runtime/lease.py grants it and tells the whole of it.

hold: shared lock on the file, until the attempt or its process is over ──▶ read it: another attempt's name means go
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rayplane.errors import RayplaneError

HOLD_TIMEOUT_S = 10.0
"""An owner holds the file for an instant."""
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Lease:
    """The file that ranks hold while an attempt lasts, and the attempt that it names while they may."""

    path: str
    attempt: str


@contextmanager
def hold(lease: Lease) -> Iterator[None]:
    """A rank's share of its lease. Raises RayplaneError when another attempt has the folder now."""
    path = Path(lease.path)
    if not path.exists():
        raise RayplaneError(f"{path} is not there: train.checkpoint.dir must be a folder that every node sees")
    end_s = time.monotonic() + HOLD_TIMEOUT_S
    with path.open() as file:
        if not lock(file, fcntl.LOCK_SH, lambda: time.monotonic() >= end_s) or file.read() != lease.attempt:
            raise RayplaneError(f"{path}: another attempt of the job has taken over")
        yield


def lock(file: IO[str], mode: int, give_up: Callable[[], bool]) -> bool:
    """Lock an open file, unless `give_up` says so while others hold it; whether it is locked."""
    while True:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if give_up():
                return False
            time.sleep(LOOK_S)
        else:
            return True
