"""The checkpoint that an attempt starts from, as the controller's states carry it.

runs/quickstart/step-00000100/manifest.json      complete
runs/quickstart/step-00000200/                   still being written, or left by a crash: never used
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rayplane.spec.manifest import complete, step_of


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: `step` steps are done in it. An empty path means a start from nothing."""

    step: int = 0
    path: str = ""


NO_CHECKPOINT = Checkpoint()


def newest(directory: Path) -> Checkpoint:
    """The newest complete checkpoint of a folder, or the empty one."""
    folders = complete(directory)
    return Checkpoint(step_of(folders[-1].name) or 0, str(folders[-1])) if folders else NO_CHECKPOINT
