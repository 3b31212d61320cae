"""Initial weights that do not depend on the layout: every block of rows has its own seed, made from the job's seed and its place.

seed(row block b of tensor t) = blake2b("{seed}/{t}/{b}")        a rank draws only the blocks that its box touches
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from rayplane.model.parameter import Weight
from rayplane.spec.sharding import Chunk, TensorSpec

BLOCK_ELEMENTS = 1 << 16


def initialise(weights: Sequence[Weight], seed: int) -> None:
    """Fill every weight: matrices from a normal distribution, norms with ones, biases with zeros."""
    for weight in weights:
        for part, view in weight.views(weight.data):
            view.copy_(initial(part.tensor, part.chunk, seed))


def initial(tensor: TensorSpec, chunk: Chunk, seed: int) -> torch.Tensor:
    """The box `chunk` of a tensor's initial value, fp32."""
    if tensor.init_std == 0.0:
        return torch.full(chunk.size, 0.0 if tensor.name.endswith("_bias") else 1.0)
    row_elements = tensor.numel // tensor.shape[0]
    block_rows = max(1, BLOCK_ELEMENTS // row_elements)
    first, last = chunk.offset[0], chunk.offset[0] + chunk.size[0]
    out = torch.empty(chunk.size)
    for block in range(first // block_rows, -(-last // block_rows)):
        rows = range(block * block_rows, min((block + 1) * block_rows, tensor.shape[0]))
        values = torch.empty((len(rows), *tensor.shape[1:])).normal_(
            0.0, tensor.init_std, generator=_generator(seed, tensor.name, block)
        )
        low, high = max(first, rows.start), min(last, rows.stop)
        out[low - first : high - first] = values[low - rows.start : high - rows.start][(slice(None), *chunk.slices[1:])]
    return out


def _generator(seed: int, name: str, block: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{name}/{block}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
