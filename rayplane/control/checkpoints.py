"""Which checkpoints a folder holds: `step-00000100/` is complete if and only if it has a `manifest.json`.

runs/quickstart/step-00000100/manifest.json      complete
runs/quickstart/step-00000200/                   still being written, or left by a crash: never used
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: `step` steps are done in it. An empty path means a start from nothing."""

    step: int = 0
    path: str = ""


NO_CHECKPOINT = Checkpoint()


def checkpoint_name(step: int) -> str:
    """Folder of a step's checkpoint.

    >>> checkpoint_name(100)
    'step-00000100'
    """
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint folder's name, or None where it is another name."""
    match = STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def complete(directory: Path) -> tuple[Checkpoint, ...]:
    """Complete checkpoints of a folder, oldest first; none where the folder does not exist."""
    if not directory.is_dir():
        return ()
    steps = [(step, entry) for entry in directory.iterdir() if (step := step_of(entry.name)) is not None]
    return tuple(Checkpoint(step, str(entry)) for step, entry in sorted(steps) if (entry / MANIFEST).is_file())


def newest(directory: Path) -> Checkpoint:
    """The newest complete checkpoint of a folder, or the empty one."""
    return next(reversed(complete(directory)), NO_CHECKPOINT)
