"""A job's folder in the memory of one host: it outlives the ranks of an attempt, and its driver.

runs/quickstart/memory-id        b0c1…: written once, so that a job whose folder is made anew never finds old copies
/dev/shm/rayplane-b0c1…/         open to its owner only
  owner.json                     {"host": …, "lock": …}: ranks that read the same host share this memory
  ranks.lock                     held by the job's ranks here, as the lock of owner.json is by its driver
  step-00000015/                 a checkpoint like those on disk; some of its files may lie on other hosts only

Folders whose locks nobody holds are removed when a job starts on their host.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rayplane.errors import RayplaneError
from rayplane.spec.manifest import complete

FIELD = "train.checkpoint.memory_dir"
ID_FILE = "memory-id"
OWNER_FILE = "owner.json"
LOCK_FILE = "ranks.lock"
PREFIX = "rayplane-"


def memory_folder(job_folder: Path, memory_dir: Path) -> Path:
    """Where every host keeps the copies of this job; the holder of the job's lock calls it. May raise RayplaneError."""
    path = job_folder / ID_FILE
    try:
        if not path.is_file():
            job_folder.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_text(uuid.uuid4().hex)
            new.rename(path)
        return memory_dir / f"{PREFIX}{path.read_text()}"
    except OSError as error:
        raise RayplaneError(f"train.checkpoint.dir: cannot write {path}: {error.strerror}") from error


def remove_folder(path: Path) -> None:
    """Remove this host's copies of a job that has failed, if there are any."""
    if path.name.startswith(PREFIX):
        shutil.rmtree(path, ignore_errors=True)


def remove_orphans(memory_dir: Path) -> None:
    """Remove the folders of jobs that nobody drives any more."""
    for owner in memory_dir.glob(f"{PREFIX}*/{OWNER_FILE}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            lock = Path(json.loads(owner.read_text())["lock"])
            if not _is_held(lock, fcntl.LOCK_SH) and not _is_held(owner.with_name(LOCK_FILE), fcntl.LOCK_EX):
                shutil.rmtree(owner.parent, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RamFolder:
    """The folder as one rank has it open; `host` is equal on the ranks that share it."""

    path: Path
    host: str
    _held: IO[str]

    @classmethod
    def open(cls, path: Path, lock: Path) -> RamFolder:
        """Make the folder if it is not there, and hold it until this process is gone. `lock` is what the job's driver holds."""
        try:
            if not (path / OWNER_FILE).is_file():
                _make(path, lock)
            held = (path / LOCK_FILE).open("a")
            fcntl.flock(held, fcntl.LOCK_SH)
            return cls(path, json.loads((path / OWNER_FILE).read_text())["host"], held)
        except (OSError, ValueError) as error:
            remedy = "name a folder in memory that every host has, or leave memory_every out"
            raise RayplaneError(f"{FIELD}: cannot keep copies in {path} ({error}); {remedy}") from error

    def close(self) -> None:
        """Let go of it."""
        self._held.close()

    def steps(self) -> list[Path]:
        """The saves that it knows, oldest first."""
        return complete(self.path)

    def keep(self, step: str) -> None:
        """Remove every save but the one of this name, and what was not finished."""
        for other in self.path.glob("*step-*"):
            if other.name != step:
                shutil.rmtree(other, ignore_errors=True)

    def room_bytes(self) -> int:
        """What can be written here, its present content making way."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize + sum(file.stat().st_size for file in self.path.rglob("*.safetensors"))


def _make(path: Path, lock: Path) -> None:
    """Whole or not at all: another rank may be making it too, and the first one's stays."""
    new = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=path.parent))
    try:
        (new / OWNER_FILE).write_text(json.dumps({"host": uuid.uuid4().hex, "lock": str(lock)}))
        with suppress(OSError):
            new.rename(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _is_held(path: Path, mode: int) -> bool:
    """Whether somebody's lock on a file keeps one of this mode out."""
    if not path.is_file():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
