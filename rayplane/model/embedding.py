"""What turns token ids and positions into the residual stream: rows of a table, whose vocabulary is cut over tp.

ids [N] ─▶ rows that this rank has, zeros for the others ─▶ summed over tp ─▶ [n, H]      (+ a row per position)

N tokens   n tokens of this rank's residual stream (N, or under sp its rows of them)   H hidden
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from rayplane.model.layers import Place
from rayplane.model.parameter import GradWork, Weight
from rayplane.model.presence import during
from rayplane.spec.sharding import TensorSpec

Tensor = torch.Tensor


class _Embed(Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, w: Weight, first: int, grads: GradWork) -> Tensor:
        local = ids - first
        inside = (local >= 0) & (local < w.shape[0])
        local = torch.where(inside, local, 0)
        ctx.local, ctx.inside, ctx.w, ctx.grads = local, inside, w, grads
        return F.embedding(local, w).masked_fill_(~inside.unsqueeze(-1), 0.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, None, None, None]:
        rows, ids = dy[ctx.inside], ctx.local[ctx.inside]
        ctx.grads.push(ctx.w, lambda buffer: buffer.index_add_(0, ids, rows.to(buffer.dtype)))
        return None, None, None, None


class Embedding(nn.Module):
    """Rows of the embedding by token id; the vocabulary is cut over tp, and each rank adds the rows it has."""

    def __init__(self, place: Place, tensor: TensorSpec):
        super().__init__()
        self.weight = place.weight(tensor)
        self._first = self.weight.parts[0].chunk.offset[0]
        self._place = place

    def forward(self, ids: Tensor) -> Tensor:  # [N] -> [n, H]
        with during(self._place.presence, self):
            rows = _Embed.apply(ids, self.weight, self._first, self._place.grads)
        return self._place.summed(rows, self._place.rows(ids.shape[0]))


class Positions(nn.Module):
    """A learned vector per position of the sequence, added to the embedding; every tp rank has the whole table."""

    def __init__(self, place: Place, tensor: TensorSpec):
        super().__init__()
        self.weight = place.weight(tensor, partial=place.sp)
        self._place = place

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # [n, H], [n] -> [n, H]
        with during(self._place.presence, self):
            return x + _Embed.apply(positions, self.weight, 0, self._place.grads)
