"""Reads boxes of tensors from a GGUF file (ggml's format), whose data is memory mapped and mostly quantised in blocks along rows.

    stored row   | block | block | block | block |      a block: 32 elements (256 for the K types) in `type_size` bytes
    wanted box           . . . [ . . . . ) . .          only the blocks under the box are dequantised, a few rows at a time

llama.cpp stores q and k of arch llama with the rows of each head reordered, for it rotates neighbouring elements where
Hugging Face (and the model here) rotates an element with the one half a head further:

    here     x0 x1 x2 | y0 y1 y2          row s * half + j of a head
    stored   x0 y0 x1 y1 x2 y2            row 2 * j + s
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from rayplane.errors import Problem, SpecError
from rayplane.model.names import Names, Stored, gguf_names, in_layer
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk

PIECE_ELEMENTS = 1 << 20
"""Elements dequantised at a time: bounds the temporary arrays to a few times this."""
PERMUTED = frozenset({"q", "k", "q_bias", "k_bias"})


@dataclass(frozen=True, slots=True)
class GgufSource:
    """`tensors` are the stored tensors by their stored name; `head_dim` undoes the row order of q and k, 0 where there is none."""

    tensors: dict[str, ReaderTensor]
    names: Names
    head_dim: int

    def stored(self, name: str) -> Stored:
        """Where the file keeps the tensor `name`."""
        return self.names.stored(name)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every stored tensor, by its stored name (GGUF lists dims innermost first)."""
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self.tensors.items()}

    def unreadable(self) -> dict[str, str]:
        """Stored tensors whose quantisation cannot be undone here, with the type."""
        return {name: t.tensor_type.name for name, t in self.tensors.items() if not _is_readable(t)}

    def read(self, name: str, chunk: Chunk) -> torch.Tensor:
        """The box `chunk` of tensor `name`, fp32 and contiguous."""
        if not chunk.numel:
            return torch.empty(chunk.size)
        stored = self.stored(name)
        tensor = self.tensors[stored.name]
        box = stored.box(chunk, tuple(int(n) for n in reversed(tensor.shape)))
        rows = np.arange(box.offset[0], box.offset[0] + box.size[0])
        place = in_layer(name)
        if self.head_dim and place and place[1] in PERMUTED:
            rows = stored_rows(rows, self.head_dim)
        first, count = (box.offset[1], box.size[1]) if len(box.size) > 1 else (0, 1)
        return torch.from_numpy(_dequantized(tensor, rows, first, count).reshape(chunk.size))


def stored_rows(rows: npt.NDArray[np.int64], head_dim: int) -> npt.NDArray[np.int64]:
    """Where llama.cpp stores these rows of q or k."""
    head, row = np.divmod(rows, head_dim)
    half, pair = np.divmod(row, head_dim // 2)
    return head * head_dim + 2 * pair + half


def open_gguf(path: Path, spec: ModelSpec) -> GgufSource:
    """Maps a GGUF file; SpecError when it is corrupt or one of several parts."""
    try:
        reader = GGUFReader(path)
        arch = str(reader.fields["general.architecture"].contents())
        parts = int(reader.fields["split.count"].contents()) if "split.count" in reader.fields else 1
    except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise _broken(path, f"cannot be read as GGUF ({error}); download it again") from error
    if parts > 1:
        raise _broken(path, f"is one of {parts} parts; join them with llama-gguf-split --merge")
    return GgufSource({t.name: t for t in reader.tensors}, gguf_names(spec), spec.head_dim if arch == "llama" else 0)


def _dequantized(tensor: ReaderTensor, rows: npt.NDArray[np.int64], first: int, count: int) -> npt.NDArray[np.float32]:
    """Columns [first, first + count) of some stored rows; a vector counts as one column."""
    block, type_size = GGML_QUANT_SIZES[tensor.tensor_type]
    data: npt.NDArray[Any] = tensor.data if tensor.data.ndim > 1 else _column(tensor)
    low, high = first // block, -(-(first + count) // block)
    per_block = type_size if data.dtype == np.uint8 else 1
    out = np.empty((len(rows), count), dtype=np.float32)
    step = max(1, PIECE_ELEMENTS // count)
    for start in range(0, len(rows), step):
        raw = data[rows[start : start + step], low * per_block : high * per_block]
        part = dequantize(np.ascontiguousarray(raw), tensor.tensor_type)
        out[start : start + step] = part[:, first - low * block : first - low * block + count]
    return out


def _column(tensor: ReaderTensor) -> npt.NDArray[Any]:
    return tensor.data.reshape(tensor.n_elements, -1)


def _is_readable(tensor: ReaderTensor) -> bool:
    if tensor.data.ndim == 1 and GGML_QUANT_SIZES[tensor.tensor_type][0] > 1:
        return False
    try:
        dequantize(np.ascontiguousarray(tensor.data.reshape(-1, tensor.data.shape[-1])[:1]), tensor.tensor_type)
    except NotImplementedError:
        return False
    return True


def _broken(path: Path, message: str) -> SpecError:
    return SpecError(Problem(f"{path} {message}", "model.path"))
