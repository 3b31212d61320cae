"""Writes a model as safetensors files, one tensor in memory at a time.

    8 bytes: length of the header | {"lm_head.weight": {"dtype": "F32", "shape": [61, 48], "data_offsets": [0, 11712]}, …} | data

model.safetensors                                       up to SHARD_BYTES
model-00001-of-00002.safetensors, …, and their index    above
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SHARD_BYTES = 5_000_000_000
"""What a file holds at most, unless a single tensor is larger."""
ITEM_BYTES = {"F32": 4, "BF16": 2}
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write. `dtype` is safetensors' name for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Its size in the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_shards(folder: Path, entries: Sequence[Entry], read: Callable[[str], Floats]) -> list[Path]:
    """Write the entries in their order, getting each one's values from `read`; returns the files."""
    shards = _grouped(entries)
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        total = sum(e.num_bytes for e in entries)
        weight_map = {e.name: name for name, shard in zip(names, shards, strict=True) for e in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    for name, shard in zip(names, shards, strict=True):
        _write(folder / name, shard, read)
    return [folder / name for name in names]


def _grouped(entries: Sequence[Entry]) -> list[list[Entry]]:
    shards: list[list[Entry]] = [[]]
    for entry in entries:
        if shards[-1] and sum(e.num_bytes for e in shards[-1]) + entry.num_bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(entry)
    return shards


def _write(path: Path, entries: Sequence[Entry], read: Callable[[str], Floats]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (end, end + entry.num_bytes)}
        end += entry.num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begins on a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            values = read(entry.name)
            assert values.shape == entry.shape, f"{entry.name} {values.shape}, not {entry.shape}"
            (values if entry.dtype == "F32" else to_bf16(values)).tofile(file)


def to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """The bits of finite values rounded to bf16, to even where two are equally near."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
