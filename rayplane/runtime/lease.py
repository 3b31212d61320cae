"""The right of one attempt to write into a job's folder, so that ranks left over from another never do.

owner    grant: name a new attempt in the file ──▶ wait until nobody holds the file ──▶ let ranks join with the Lease
rank     hold:  shared lock on the file, until the attempt or its process is over ──▶ read it: another attempt's name means go

A rank that locked before the name changed makes the owner wait; one that locks after it reads the new name and ends. A rank that is
recalled lets go before it says that it is parked.
"""

from __future__ import annotations

import fcntl
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from rayplane.errors import RayplaneError
from rayplane.rank.lease import Lease, lock
from rayplane.runtime.patience import GaveUp, never

GRANT_TIMEOUT_S = 60.0
"""Ranks die within two seconds of their owner, unless their machine or its file system hangs."""


def grant(path: Path, give_up: Callable[[], bool] = never, timeout_s: float = GRANT_TIMEOUT_S) -> Lease:
    """A lease for new ranks, once those of every earlier one are gone. Raises RayplaneError when they do not end, GaveUp."""
    lease = Lease(str(path), uuid.uuid4().hex)
    end_s = time.monotonic() + timeout_s

    def over() -> bool:
        if give_up():
            raise GaveUp
        return time.monotonic() >= end_s

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lease.attempt)
        with path.open("a") as file:
            free = lock(file, fcntl.LOCK_EX, over)
    except OSError as error:
        raise RayplaneError(f"train.checkpoint.dir: cannot lock {path}: {error.strerror}") from error
    if not free:
        raise RayplaneError(f"ranks of an earlier run still hold {path} after {timeout_s:g} s: end them (`fuser {path}`)")
    return lease
