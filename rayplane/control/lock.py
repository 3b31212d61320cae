"""One controller per job folder: an advisory lock beside the folder that ends with its process, however that dies.

runs/quickstart/            the job's folder
runs/.quickstart.lock       locked by the controller; holds its pid and host
runs/.quickstart.ranks      the lease of its ranks, which may live for a moment longer than the controller
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rayplane.errors import RayplaneError
from rayplane.runtime.lease import grant

TRIES = 5
TRY_EVERY_S = 0.05
"""`held` looks by taking a shared lock for an instant, which must not turn a controller away."""


@contextmanager
def locked(directory: Path, field: str = "train.checkpoint.dir") -> Iterator[None]:
    """Hold the folder's lock, once the ranks of earlier controllers are gone; raises RayplaneError naming who has it.

    `field` is the one of the job that names the folder.
    """
    with _opened(lock_path(directory), field) as file:
        if not any(_try(file, fcntl.LOCK_EX, pause_s=TRY_EVERY_S) for _ in range(TRIES)):
            file.seek(0)
            owner = file.read().strip() or "an unknown process"
            raise RayplaneError(f"{directory} is in use by {owner}; stop that run first, or set another {field}")
        with contextlib.suppress(OSError):  # a full disk costs the owner's name, not the lock
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"pid {os.getpid()} on {socket.gethostname()}".encode())
        grant(lease_path(directory))  # to nobody: what is left of an earlier run ends before anyone looks into the folder
        yield


def held(directory: Path) -> bool:
    """Whether a controller lives for this folder."""
    path = lock_path(directory)
    if not path.is_file():
        return False
    with path.open() as file:
        return not _try(file, fcntl.LOCK_SH)


def lock_path(directory: Path) -> Path:
    """The lock lies beside the folder, so that the folder can be renamed; a folder with several paths has one lock."""
    real = Path(os.path.realpath(directory))
    return real.with_name(f".{real.name}.lock")


def lease_path(directory: Path) -> Path:
    """The file that the job's ranks hold while they live."""
    return directory.with_name(f".{directory.name}.ranks")


@contextmanager
def _opened(path: Path, field: str) -> Iterator[IO[str]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise RayplaneError(f"{field}: cannot write beside it ({path}: {error.strerror}); name another folder") from error
    with file:
        yield file


def _try(file: IO[str], mode: int, pause_s: float = 0.0) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(pause_s)
        return False
    return True
