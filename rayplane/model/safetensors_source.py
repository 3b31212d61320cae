"""Reads boxes of tensors from a Hugging Face folder: one model.safetensors, or shards and their index.

    model.safetensors.index.json   {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors", ...}}

Files are memory mapped and sliced (`get_slice`), so only the pages of the wanted box are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rayplane.errors import Problem, SpecError
from rayplane.model.names import Names, Stored, hf_names
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True)
class SafetensorsSource:
    """`slices` has one lazy slice per stored tensor, by its stored name."""

    slices: dict[str, Any]
    names: Names

    def stored(self, name: str) -> Stored:
        """Where the files keep the tensor `name`."""
        return self.names.stored(name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, by its stored name."""
        return {name: tuple(s.get_shape()) for name, s in self.slices.items()}

    def unreadable(self) -> dict[str, str]:
        """Stored tensors whose element type is no plain float, with the type."""
        return {name: s.get_dtype() for name, s in self.slices.items() if s.get_dtype() not in READABLE}

    def read(self, name: str, chunk: Chunk) -> torch.Tensor:
        """The box `chunk` of tensor `name`, fp32 and contiguous."""
        stored = self.stored(name)
        tensor = self.slices[stored.name]
        box: torch.Tensor = tensor[stored.box(chunk, tuple(tensor.get_shape())).slices]
        return (box.t() if stored.transposed else box).to(torch.float32).contiguous()


def open_safetensors(folder: Path, spec: ModelSpec) -> SafetensorsSource:
    """Maps every file of the folder's model; SpecError when one is missing or corrupt."""
    slices: dict[str, Any] = {}
    for file, names in _files(folder).items():
        stored = _open(file)
        held = set(stored.keys())
        if names is not None and (lost := sorted(names - held)):
            raise _broken(folder / INDEX, f"says that {file.name} holds {lost[0]}, which it does not; download the folder again")
        slices |= {name: stored.get_slice(name) for name in (held if names is None else names)}
    return SafetensorsSource(_with_prefix(slices, hf_names(spec)), hf_names(spec))


def _with_prefix(slices: dict[str, Any], names: Names) -> dict[str, Any]:
    """Files saved from a model without its head leave out the first word of every name (the published GPT-2 does)."""
    prefix = names.outer["embed"].partition(".")[0] + "."
    if any(name.startswith(prefix) for name in slices):
        return slices
    return {name if name == names.outer["head"] else prefix + name: tensor for name, tensor in slices.items()}


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """Files of the model, each with the names the index gives it (None: every name in it)."""
    if (folder / INDEX).is_file():
        entries = _weight_map(folder / INDEX)
        return {folder / file: {n for n, f in entries.items() if f == file} for file in sorted(set(entries.values()))}
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    raise _broken(folder, f"has neither {SINGLE} nor {INDEX}; save the model as safetensors there")


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        entries = {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(index, f"is not an index of safetensors files ({error!r}); download it again") from error
    for file in entries.values():
        if Path(file).name != file:
            raise _broken(index, f"names {file!r}, which lies outside the folder; download it again")
    return entries


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError as error:
        raise _broken(file, "is missing; download the whole folder") from error
    except (SafetensorError, OSError) as error:
        raise _broken(file, f"cannot be read as safetensors ({error}); download it again") from error


def _broken(path: Path, message: str) -> SpecError:
    return SpecError(Problem(f"{path} {message}", "model.path"))
