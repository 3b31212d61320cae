"""Attention with its scores written out, some queries at a time, for what no fused kernel takes; in fp32 whatever comes in.

scores = q k^T / sqrt(D), -inf where query i does not see key j        out = exp(scores - lse) v
p = exp(scores - lse)      dv = p^T dout      dscores = p * (dout v^T - sum(dout * out))      dq = dscores k      dk = dscores^T q

[B, h, R or K, D]; which keys a query sees is said by left and right, as in tiles.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

Tensor = torch.Tensor
ROWS = 256
"""Queries whose scores exist at a time."""


def dense(q: Tensor, k: Tensor, v: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
    """(out, lse in fp32). Every query must see a key."""
    k, v = k.float(), v.float()
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    for rows, seen in _strips(q.shape[2], k.shape[2], left, right, q.device):
        scores = _scores(q[:, :, rows].float(), k, seen)
        lse[:, :, rows] = scores.logsumexp(-1)
        out[:, :, rows] = (scores - lse[:, :, rows, None]).exp() @ v
    return out, lse


def dense_backward(inputs: Sequence[Tensor], left: int, right: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, in fp32. `inputs`: the gradient of out, q, k, v, and out and lse over all keys of the rows."""
    dout, q, k, v, out, lse = (x.float() for x in inputs)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows, seen in _strips(q.shape[2], k.shape[2], left, right, q.device):
        p = (_scores(q[:, :, rows], k, seen) - lse[:, :, rows, None]).exp()
        dv += p.transpose(2, 3) @ dout[:, :, rows]
        mean = (dout[:, :, rows] * out[:, :, rows]).sum(-1, keepdim=True)
        dscores = p * (dout[:, :, rows] @ v.transpose(2, 3) - mean) / math.sqrt(q.shape[-1])
        dq[:, :, rows] = dscores @ k
        dk += dscores.transpose(2, 3) @ q[:, :, rows]
    return dq, dk, dv


def _scores(q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
    return (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill_(~seen, -torch.inf)


def _strips(queries: int, keys: int, left: int, right: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    """(some queries, which keys each sees)."""
    for first in range(0, queries, ROWS):
        rows = torch.arange(first, min(first + ROWS, queries), device=device)
        distance = torch.arange(keys, device=device) - rows[:, None] - (keys - queries)
        seen = torch.ones_like(distance, dtype=torch.bool)
        if left >= 0:
            seen &= distance >= -left
        if right >= 0:
            seen &= distance <= right
        yield slice(first, first + len(rows)), seen
