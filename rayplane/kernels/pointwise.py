"""Ops that look at each token alone: norms, the embedding, the gated product.

Norm     x / rms(x) * w, or (x - mean) / std * w + b         Embed    a row of the table (+ one per position)
Act      silu(gate) * up, or gelu(up) in its tanh form
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rayplane.kernels.records import Kind, OpRecord, Step, record

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """x -> out, each [tokens, H]; with `wanted`, row i of out is of the i-th wanted token."""

    x: Tensor
    out: Tensor
    weight: Tensor
    bias: Tensor | None
    eps: float
    centred: bool = False
    """Whether it is a layer norm."""
    wanted: bool = False

    def record(self) -> OpRecord:
        sizes = (self.weight.numel(), self.x.stride(0), self.out.stride(0), self.centred, self.wanted)
        return record(Kind.NORM, self.x.dtype, (self.x, self.out, self.weight, self.bias), sizes, (self.eps,))

    def twin(self, step: Step) -> None:
        x = (self.x[step.rows] if self.wanted else self.x[: step.tokens.shape[0]]).float()
        bias = None if self.bias is None else self.bias.float()
        if self.centred:
            normed = F.layer_norm(x, x.shape[-1:], self.weight.float(), bias, self.eps)
        else:
            normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()
        self.out[: x.shape[0]] = normed


@dataclass(frozen=True, slots=True)
class Embed:
    """Ids -> out [tokens, H]: rows `first`.. of the vocabulary are here, ids of others give zeros, to be summed over ranks.

    `columns` is 0 where the table is [vocabulary, H], else how many columns it has packed for products (`linear.Packed`).
    """

    table: Tensor
    out: Tensor
    learned: Tensor | None
    """Rows by position, added."""
    hidden: int
    first: int
    count: int
    columns: int = 0

    def record(self) -> OpRecord:
        partial = self.out.dtype != self.table.dtype
        sizes = (self.hidden, self.first, self.count, self.out.stride(0), self.columns, partial)
        return record(Kind.EMBED, self.table.dtype, (self.table, self.out, self.learned), sizes)

    def twin(self, step: Step) -> None:
        assert not self.columns, "torch does not read packed tables"
        local = step.tokens - self.first
        here = (local >= 0) & (local < self.count)
        x = F.embedding(torch.where(here, local, 0), self.table).float() * here[:, None]
        if self.learned is not None:
            x += F.embedding(step.positions, self.learned)
        self.out[: x.shape[0]] = x


@dataclass(frozen=True, slots=True)
class Act:
    """x [tokens, gate | up] or [tokens, up] -> out [tokens, M]."""

    x: Tensor
    out: Tensor
    gated: bool

    def record(self) -> OpRecord:
        sizes = (self.out.shape[1], self.x.stride(0), self.out.stride(0), self.gated)
        return record(Kind.ACT, self.x.dtype, (self.x, self.out), sizes)

    def twin(self, step: Step) -> None:
        x = self.x[: step.tokens.shape[0]].float()
        if self.gated:
            gate, up = x.chunk(2, -1)
            self.out[: x.shape[0]] = F.silu(gate) * up
        else:
            self.out[: x.shape[0]] = F.gelu(x, approximate="tanh")
