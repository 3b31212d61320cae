"""Causal self-attention over this rank's heads, with grouped KV heads and, by spec, rotary positions and a sliding window.

    D head dim   h query heads on this rank   k KV heads on this rank

When the cut of the query heads is uneven, a rank's KV heads may serve unequal numbers of its query heads: 9 heads, 3 KV heads, tp 2
gives rank 0 query heads 0-4 and KV heads 0, 1, so that KV head 0 serves three of them and KV head 1 two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from rayplane.comm.functions import Rows
from rayplane.model.context import Context, Mask, attend
from rayplane.model.layers import ColumnLinear, Place, RowLinear
from rayplane.model.norms import RmsNorm
from rayplane.spec.model import ModelSpec, Rope
from rayplane.spec.sharding import TensorSpec

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Flow:
    """What the attention of all layers shares in one forward."""

    seq: int
    """Tokens of the whole sequences."""
    positions: Tensor
    """Those of this rank's tokens in their sequence, [S]."""
    rope: tuple[Tensor, Tensor] | None
    """cos and sin of the angles at those positions; None where positions are learned."""
    mask: Mask | None
    """What each query sees; None where that is all before it, and all of it on this rank."""


def rope_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Angle per position of each pair of elements, [D / 2]; Llama 3's scaling as in Meta's reference code."""
    frequencies = rope.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.factor == 1.0:
        return frequencies.float()
    turns = rope.original_max_seq * frequencies / (2 * math.pi)
    blend = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0.0, 1.0)
    return (frequencies * (blend + (1.0 - blend) / rope.factor)).float()


def rope_table(rope: Rope, head_dim: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of the angles at some positions, each [S, 1, D / 2], fp32."""
    angles = positions.float()[:, None] * rope_frequencies(rope, head_dim).to(positions.device)
    return angles.cos()[:, None], angles.sin()[:, None]


class _Rotate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.cos, ctx.sin = cos, sin
        return _rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return _rotate(dy, ctx.cos, -ctx.sin), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [B, S, h, D] -> the same
    """Turn each pair (x[i], x[i + D/2]) by its angle."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    a, b = x.float().chunk(2, -1)
    first, second = out.chunk(2, -1)
    first.copy_(a * cos - b * sin)
    second.copy_(b * cos + a * sin)
    return out


class Attention(nn.Module):
    """Projections, rotary embedding and scaled dot-product attention; the output is this rank's partial sum, without the bias of o."""

    def __init__(self, place: Place, spec: ModelSpec, tensors: dict[str, TensorSpec]):
        super().__init__()
        biases = [tensors[f"{n}_bias"] for n in "qkv"] if spec.qkv_bias else []
        self.qkv = ColumnLinear(place, [tensors[n] for n in "qkv"], biases)
        self.o = RowLinear(place, tensors["o"])
        self.q_norm = RmsNorm(place, tensors["q_norm"], spec.norm_eps, heads=True) if spec.qk_norm else None
        self.k_norm = RmsNorm(place, tensors["k_norm"], spec.norm_eps, heads=True) if spec.qk_norm else None
        self._head_dim, self._place = spec.head_dim, place
        first, self._heads = tensors["q"].dims[0].span(place.tp.size, place.tp.rank)
        first_kv, self._kv_heads = tensors["k"].dims[0].span(place.tp.size, place.tp.rank)
        serves = [(first + i) // spec.group - first_kv for i in range(self._heads)]
        self._kv_of_head = None if serves == list(range(self._heads)) else torch.tensor(serves)

    def forward(self, x: Tensor, flow: Flow, rows: Rows) -> Tensor:  # [n, H] -> [N, H]
        return self.o(self._place.again("selective", self._core, self.qkv(x, rows), flow))

    def _core(self, qkv: Tensor, flow: Flow) -> Tensor:  # [N, (h + 2 k) D] -> [N, h D]
        d = self._head_dim
        q, k, v = qkv.split([self._heads * d, self._kv_heads * d, self._kv_heads * d], -1)
        q, k, v = (t.unflatten(0, (-1, flow.positions.shape[0])).unflatten(-1, (-1, d)) for t in (q, k, v))  # [B, S, h or k, D]
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if flow.rope:
            q, k = _Rotate.apply(q, *flow.rope), _Rotate.apply(k, *flow.rope)
        out = self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), flow)
        return out.transpose(1, 2).reshape(qkv.shape[0], -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, flow: Flow) -> Tensor:  # [B, h, S, D], [B, k, S, D] -> [B, h, S, D]
        serves = self._kv_of_head.to(k.device) if self._kv_of_head is not None else None
        if flow.mask is not None:
            return attend(q, k, v, Context(self._place.cp, flow.seq, flow.mask, serves), self._place.cp_method)
        if serves is not None:
            k, v = k.index_select(1, serves), v.index_select(1, serves)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
