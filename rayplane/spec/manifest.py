"""A checkpoint knows tensors, never ranks: the Manifest says which file holds which box of which global tensor.

    step-00000100/
      manifest.json              {"step": 100, "tensors": {"model/layers.0.q": {"shape": [512, 512], "boxes": [...]}}, …}
      rank-00000.safetensors     keys "model/layers.0.q@0,0": the box whose corner is (0, 0)
      tokenizer.json, …          where the job named a tokenizer other than bytes

Names are STATE/TENSOR for the states "model" (fp32 weights), "exp_avg" and "exp_avg_sq". The folder exists under its name only when it
is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rayplane.errors import CheckpointError, DamagedError
from rayplane.spec.model import ModelSpec, Rope
from rayplane.spec.sharding import Chunk

FORMAT = 1
NAME = "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a global tensor, in a file. `crc32` is that of its bytes."""

    offset: tuple[int, ...]
    size: tuple[int, ...]
    file: str
    key: str
    crc32: int

    @property
    def chunk(self) -> Chunk:
        """The box without its file."""
        return Chunk(self.offset, self.size)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds. `layout` tells a reader what wrote it."""

    step: int
    samples: int
    """Training samples taken so far; the next step begins with sample number `samples` of the data's order."""
    data: str
    """Fingerprint of the training data and its order."""
    model: dict[str, Any]
    tensors: Mapping[str, tuple[Box, ...]]
    layout: str
    tokenizer: str = ""
    """`bytes`, or the file in its folder that holds the tokenizer; empty where none is known."""

    def dump(self) -> str:
        """As JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def read(cls, folder: Path, remedy: str = "") -> Manifest:
        """The manifest of a complete checkpoint; DamagedError for a folder that has none, CheckpointError for another format.

        The error ends with the `remedy`, which is that of a job that goes on where none is given.
        """
        path, remedy = folder / NAME, remedy or f"remove {folder} to go on from an older checkpoint"
        try:
            raw = json.loads(path.read_text())
            version = raw.pop("format")
            tensors = {
                name: tuple(Box(tuple(b["offset"]), tuple(b["size"]), b["file"], b["key"], b["crc32"]) for b in boxes)
                for name, boxes in raw.pop("tensors").items()
            }
            manifest = cls(tensors=tensors, **raw)
        except PermissionError as error:
            raise CheckpointError(f"{path}: {error.strerror}; make it readable") from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path}: not a readable checkpoint manifest ({type(error).__name__}: {error}); {remedy}") from error
        if version != FORMAT:
            raise CheckpointError(f"{path}: of checkpoint format {version}, this rayplane reads {FORMAT}; {remedy}")
        return manifest

    def check_data(self, fingerprint: str, folder: Path) -> None:
        """CheckpointError when training would go on with other data: samples would be repeated or skipped."""
        if self.data != fingerprint:
            raise CheckpointError(
                f"{folder} was trained on other data, or on the same data in another order (train.data or the files have changed); "
                "restore them, or start over with --fresh, or in another checkpoint.dir"
            )

    def check_model(self, spec: ModelSpec, folder: Path) -> None:
        """CheckpointError when the checkpoint is of another model; names what differs."""
        if different := differences(self.spec(folder), spec):
            raise CheckpointError(f"{folder} holds another model ({different}); choose another checkpoint.dir or the same model")

    def lack(self, spec: ModelSpec, folder: Path) -> str:
        """Why the weights of a model cannot all be read from the folder, by what the manifest says; nothing where they can."""
        for tensor in spec.tensors():
            boxes = self.tensors.get(f"model/{tensor.name}", ())
            if not all(_within(box, tensor.shape) for box in boxes):
                return f"the boxes of {tensor.name} do not lie within {list(tensor.shape)}"
            if (held := sum(box.chunk.numel for box in boxes)) != tensor.numel:
                return f"{tensor.name} is incomplete: {held} of {tensor.numel} elements"
        files = sorted({box.file for boxes in self.tensors.values() for box in boxes})
        if missing := [file for file in files if not (folder / file).is_file()]:
            return f"{missing[0]} is missing" + (f", and {more} more files" if (more := len(missing) - 1) else "")
        return ""

    def spec(self, folder: Path) -> ModelSpec:
        """The model that the checkpoint holds."""
        try:
            return ModelSpec(**{**self.model, "rope": Rope(**self.model["rope"])})
        except (TypeError, KeyError) as error:
            raise CheckpointError(
                f"{folder}: its model cannot be read ({error}); it was written by another version of rayplane"
            ) from error


def _within(box: Box, shape: tuple[int, ...]) -> bool:
    if not len(box.offset) == len(box.size) == len(shape):
        return False
    return all(0 <= first <= first + count <= whole for first, count, whole in zip(box.offset, box.size, shape, strict=True))


def described(spec: ModelSpec) -> dict[str, Any]:
    """A model as plain JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(spec)))
    return plain


def model_numbers(spec: ModelSpec) -> dict[str, Any]:
    """What must be equal for a checkpoint to fit a model: its shape, not its name or how it was first filled."""
    return {k: v for k, v in described(spec).items() if k not in ("name", "dtype", "init_std", "max_seq")}


def differences(there: ModelSpec, here: ModelSpec) -> str:
    """In which numbers two models differ so that a checkpoint of one does not fit the other; nothing where it does."""
    theirs = model_numbers(there)
    return "; ".join(f"{k} {theirs[k]!r} there, {v!r} here" for k, v in model_numbers(here).items() if theirs[k] != v)


def folder_name(step: int) -> str:
    """Folder of the checkpoint taken after `step` steps.

    >>> folder_name(100), step_of("step-00000100"), step_of(".step-00000100.tmp")
    ('step-00000100', 100, None)
    """
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint folder's name, or None where it is another name."""
    match = _FOLDER.fullmatch(name)
    return int(match[1]) if match else None


def complete(directory: Path) -> list[Path]:
    """Complete checkpoints in a job's directory, oldest first."""
    if not directory.is_dir():
        return []
    found = [(step, p) for p in directory.iterdir() if (step := step_of(p.name)) is not None and (p / NAME).is_file()]
    return [p for _, p in sorted(found)]
