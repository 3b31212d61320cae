"""Reads boxes of tensors from a checkpoint, whatever layout wrote it: of each tensor only the stored boxes that the wanted one meets.

stored, tp 2     [ rank 0's rows | rank 1's rows ]      each box is checked by its crc32
wanted                  [  rows  )
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rayplane.errors import CheckpointError, DamagedError, Problem, SpecError
from rayplane.spec.checkpoint_path import FIELD, another
from rayplane.spec.manifest import Box, Manifest, differences
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk

Tensor = torch.Tensor


class Boxes:
    """The boxes of one checkpoint; each file is opened once. Errors end with the `remedy`."""

    def __init__(self, folder: Path, manifest: Manifest, remedy: str):
        self._folder, self._manifest, self._remedy = folder, manifest, remedy
        self._open: dict[str, Any] = {}

    def fill(self, name: str, chunk: Chunk, out: Tensor) -> None:
        """Copy the box `chunk` of STATE/TENSOR into `out`, on any device. DamagedError where it is damaged or not all there."""
        filled = 0
        for box in self._manifest.tensors.get(name, ()):
            if (common := box.chunk.overlap(chunk)) is not None:
                values = self._read(box)[common.within(box.chunk).slices]
                out[common.within(chunk).slices] = values.to(out.device)
                filled += common.numel
        if filled != chunk.numel:
            raise DamagedError(f"{self._folder}: {name} is incomplete: {filled} of {chunk.numel} elements; {self._remedy}")

    def _read(self, box: Box) -> Tensor:
        path = self._folder / box.file
        try:
            if box.file not in self._open:
                self._open[box.file] = safe_open(path, framework="pt")
            values: Tensor = self._open[box.file].get_tensor(box.key)
        except PermissionError as error:
            raise CheckpointError(f"{path}: {error.strerror}; make it readable") from error
        except (OSError, SafetensorError) as error:
            raise DamagedError(f"{path}: cannot read {box.key} ({error}); {self._remedy}") from error
        if crc32_of(values) != box.crc32:
            raise DamagedError(f"{path}: {box.key} is damaged (its checksum differs); {self._remedy}")
        return values


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The weights in a checkpoint, without the optimizer's state."""

    boxes: Boxes

    def read(self, name: str, chunk: Chunk) -> Tensor:
        """The box `chunk` of tensor `name`, fp32 and contiguous. CheckpointError where it is damaged."""
        out = torch.empty(chunk.size)
        self.boxes.fill(f"model/{name}", chunk, out)
        return out


def open_checkpoint(folder: Path, spec: ModelSpec) -> CheckpointSource:
    """The weights of a complete checkpoint; SpecError where they are another model's."""
    manifest, remedy = Manifest.read(folder, another(folder)), f"to take an older model, {another(folder)}"
    if different := differences(manifest.spec(folder), spec):
        raise SpecError(Problem(f"{folder} holds another model ({different}); name a checkpoint of this one", FIELD))
    return CheckpointSource(Boxes(folder, manifest, remedy))


def crc32_of(x: Tensor) -> int:
    """Of the bytes of a contiguous tensor on the host."""
    return zlib.crc32(x.view(-1).view(torch.uint8).numpy().data)
