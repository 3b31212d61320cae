"""The right of one attempt to write into a job's folder, so that ranks left over from another never do.

owner    grant: name a new attempt in the file ──▶ wait until nobody holds the file ──▶ spawn ranks with the Lease
rank     hold:  shared lock on the file, until its process is gone ──▶ read it: another attempt's name means go

A rank that locked before the name changed makes the owner wait; one that locks after it reads the new name and ends.
"""

from __future__ import annotations

import fcntl
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rayplane.errors import RayplaneError
from rayplane.runtime.patience import GaveUp, Patience, never

GRANT_TIMEOUT_S = 60.0
"""Ranks die within two seconds of their owner, unless their machine or its file system hangs."""
HOLD_TIMEOUT_S = 10.0
"""An owner holds the file for an instant."""
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Lease:
    """The file that ranks hold while they live, and the attempt that it names while they may."""

    path: str
    attempt: str


def grant(path: Path, give_up: Callable[[], bool] = never, timeout_s: float = GRANT_TIMEOUT_S) -> Lease:
    """A lease for new ranks, once those of every earlier one are gone. Raises RayplaneError when they do not end, GaveUp."""
    lease = Lease(str(path), uuid.uuid4().hex)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lease.attempt)
        with path.open("a") as file:
            held = not _lock(file, fcntl.LOCK_EX, Patience(timeout_s, give_up))
    except OSError as error:
        raise RayplaneError(f"train.checkpoint.dir: cannot lock {path}: {error.strerror}") from error
    if held:
        raise RayplaneError(f"ranks of an earlier run still hold {path} after {timeout_s:g} s: end them (`fuser {path}`)")
    return lease


@contextmanager
def hold(lease: Lease) -> Iterator[None]:
    """A rank's share of its lease. Raises RayplaneError when another attempt has the folder now."""
    path = Path(lease.path)
    if not path.exists():
        raise RayplaneError(f"{path} is not there: train.checkpoint.dir must be a folder that every node sees")
    with path.open() as file:
        if not _lock(file, fcntl.LOCK_SH, Patience(HOLD_TIMEOUT_S)) or file.read() != lease.attempt:
            raise RayplaneError(f"{path}: another attempt of the job has taken over")
        yield


def _lock(file: IO[str], mode: int, patience: Patience) -> bool:
    end_s = time.monotonic() + patience.wait_s
    while True:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if patience.give_up():
                raise GaveUp from None
            if time.monotonic() >= end_s:
                return False
            time.sleep(LOOK_S)
        else:
            return True
