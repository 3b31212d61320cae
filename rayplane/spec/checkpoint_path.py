"""A rayplane checkpoint as a model's path: which folder is meant, and which model lies there.

runs/quickstart                    the newest complete checkpoint of that job
runs/quickstart/step-00000200      that one, and so any folder with a manifest.json
a folder with a config.json        none: a Hugging Face folder
"""

from __future__ import annotations

from pathlib import Path

from rayplane.errors import CheckpointError, Problem, SpecError
from rayplane.spec.manifest import NAME, Manifest, complete, step_of
from rayplane.spec.model import ModelSpec

FIELD = "model.path"


def checkpoint_at(place: Path) -> Path | None:
    """The complete checkpoint that a folder means; None where it is no checkpoint's. SpecError where none is complete."""
    if not place.is_dir() or (place / "config.json").is_file():
        return None
    if (place / NAME).is_file():
        return place
    try:
        if found := complete(place):
            return found[-1]
        begun = step_of(place.name) is not None or any(_is_begun(path.name) for path in place.iterdir())
    except OSError as error:
        raise SpecError(Problem(f"{place} cannot be looked into ({error.strerror}); make it readable", FIELD)) from error
    if begun:
        message = f"{place} holds no complete checkpoint: a save is under way, or was interrupted; {another(place)}"
        raise SpecError(Problem(message, FIELD))
    return None


def read_model(checkpoint: Path) -> ModelSpec:
    """The model of a complete checkpoint. SpecError where it cannot be read, or where its weights are not all there."""
    try:
        manifest = Manifest.read(checkpoint, another(checkpoint))
        spec = manifest.spec(checkpoint)
    except CheckpointError as error:
        raise SpecError(Problem(str(error), FIELD)) from error
    if fault := manifest.lack(spec, checkpoint):
        raise SpecError(Problem(f"{checkpoint} is not whole: {fault}; {another(checkpoint)}", FIELD))
    return spec


def another(checkpoint: Path) -> str:
    """What to do where a checkpoint is of no use: the newest of its job's others, where there is one."""
    try:
        others = [path for path in complete(checkpoint.parent) if path.name != checkpoint.name]
    except OSError:  # who may read a folder may not always look into the one that it lies in
        others = []
    return f"name {others[-1]}" if others else "name another checkpoint"


def _is_begun(name: str) -> bool:
    """Whether a folder of this name is a checkpoint, or one that is being written."""
    return step_of(name.removeprefix(".").removesuffix(".tmp")) is not None
