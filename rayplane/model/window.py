"""Causal attention over a sliding window, in strips of queries, so that far keys cost nothing.

strip of queries [a, b)     keys [a - window + 1, b)     query a + i sees columns i .. i + window - 1 of the strip

       keys ->                     one Band, [ROWS, ROWS + window - 1], serves every strip of every layer;
q   x x x . . .                    the first strips use its right columns, the last one its upper rows
|   . x x x . .
v   . . x x x .                    ROWS 4, window 3
    . . . x x x

B batch   h heads   S sequence   D head dim
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import Function

Tensor = torch.Tensor
ROWS = 1024
"""Queries per strip: a kernel's worth of work, and few more keys than a window of thousands needs."""


def band(window: int, seq: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What is added to the scores of a strip: 0 within the window, else -inf; [rows, rows + window - 1]."""
    rows = min(ROWS, seq)
    inside = torch.ones(rows, rows + window - 1, dtype=torch.bool, device=device).tril_(window - 1).triu_()
    return torch.zeros(inside.shape, dtype=dtype, device=device).masked_fill_(~inside, -torch.inf)


class _Strips(Function):
    """Overlapping slices of the sequence as views; their gradients are added into one tensor (slicing would make one for each)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bounds: Sequence[slice]) -> tuple[Tensor, ...]:
        ctx.shape, ctx.bounds = x.shape, bounds
        return tuple(x[:, :, b] for b in bounds)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].new_zeros(ctx.shape)
        for bound, grad in zip(ctx.bounds, grads, strict=True):
            total[:, :, bound] += grad
        return total, None


def window_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:  # [B, h, S, D] -> the same
    """Attention of each token to those of the window that ends with it; `mask` is the band of that window."""
    rows, window = mask.shape[0], mask.shape[1] - mask.shape[0] + 1
    starts = range(0, q.shape[2], rows)
    keys = [slice(max(0, start - window + 1), min(start + rows, q.shape[2])) for start in starts]
    strips = zip(starts, q.split(rows, 2), keys, _Strips.apply(k, keys), _Strips.apply(v, keys), strict=True)
    out = []
    for start, queries, span, strip_k, strip_v in strips:
        first = window - 1 - (start - span.start)
        part = mask[: queries.shape[2], first : first + span.stop - span.start]
        out.append(F.scaled_dot_product_attention(queries, strip_k, strip_v, part))
    return torch.cat(out, 2)
