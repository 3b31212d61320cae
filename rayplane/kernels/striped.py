"""Attention over keys that the cp ranks of one host keep (rayplane.model.striping), through memory that they share.

    offer    this rank's queries to where all see them       attend    all queries over this rank's keys: a part, and its log-sum-exp
    merge    out = sum over ranks of e^(lse - total) part,  total = log of the sum over ranks of e^lse        of this rank's queries

    header | parts [ranks, queries, h D] fp32 | lse [ranks, queries, h] fp32 | logits [ranks, rows, vocabulary] fp32 | queries [Q, h D]

The ranks meet twice in a layer. All have merged what they need before one writes the next layer's parts, for they have met by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from rayplane.kernels.native import Native
from rayplane.kernels.op import Op
from rayplane.kernels.paged import Attend
from rayplane.kernels.records import Kind, OpRecord, Step
from rayplane.kernels.shared import HEADER_BYTES, Memory

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class StripedSizes:
    """What the memory must hold."""

    queries: int
    heads: int
    """Query heads of a rank."""
    dim: int
    rows: int
    """Of logits; 0 where they are not made."""
    vocab: int
    dtype: torch.dtype

    @property
    def floats(self) -> tuple[int, int, int]:
        """fp32 numbers of a rank: parts, log-sum-exps, logits."""
        return self.queries * self.heads * self.dim, self.queries * self.heads, self.rows * self.vocab

    def memory_bytes(self, ranks: int) -> int:
        """All of it."""
        return HEADER_BYTES + 4 * ranks * sum(self.floats) + self.floats[0] * self.dtype.itemsize


class StripedMemory(Memory):
    """The memory of cp ranks."""

    def __init__(self, path: Path, rank: int, ranks: int, sizes: StripedSizes, native: Native, timeout_s: float):
        super().__init__("cp", path, rank, ranks, sizes, native, timeout_s)
        parts, lse, logits, queries = self.whole[HEADER_BYTES:].split(
            [*(4 * ranks * n for n in sizes.floats), sizes.floats[0] * sizes.dtype.itemsize]
        )
        width = sizes.heads * sizes.dim
        self.parts = parts.view(torch.float32).view(ranks, sizes.queries, width)
        self.lse = lse.view(torch.float32).view(ranks, sizes.queries, sizes.heads)
        self.logits = logits.view(torch.float32).view(ranks, sizes.rows, sizes.vocab)
        self.queries = queries.view(sizes.dtype).view(sizes.queries, width)

    def attention(self, attend: Attend) -> list[Op]:
        """The ops that make attend's out, over all ranks' keys."""
        part = replace(attend, qkv=self.queries, out=self.parts[self.rank], lse=self.lse[self.rank])
        return [Offer(self, attend.qkv), part, Merge(self, attend.out)]


@dataclass(frozen=True, slots=True)
class Offer:
    """Rotated queries of qkv [tokens, (h + 2 k) D] to where all ranks see them."""

    memory: StripedMemory
    qkv: Tensor

    def record(self) -> OpRecord:
        queries = self.memory.queries
        sizes = (queries.shape[1], self.qkv.stride(0), queries.stride(0))
        return self.memory.record(Kind.OFFER, self.qkv.dtype, (self.qkv, queries, None), sizes)

    def twin(self, step: Step) -> None:
        assert step.stripes is not None
        count, first, queries = step.tokens.shape[0], step.stripes.first, self.memory.queries
        queries[first : first + count] = self.qkv[:count, : queries.shape[1]]
        self.memory.meet()


@dataclass(frozen=True, slots=True)
class Merge:
    """out [tokens, h D]: what all ranks found for this rank's tokens."""

    memory: StripedMemory
    out: Tensor

    def record(self) -> OpRecord:
        parts, lse = self.memory.parts, self.memory.lse
        sizes = (parts.shape[2], lse.shape[2], self.out.stride(0), lse.shape[1])
        return self.memory.record(Kind.MERGE, self.out.dtype, (parts, lse, self.out), sizes)

    def twin(self, step: Step) -> None:
        assert step.stripes is not None
        self.memory.meet()
        count, first = step.tokens.shape[0], step.stripes.first
        parts, lse = self.memory.parts[:, first : first + count], self.memory.lse[:, first : first + count]
        weights = lse.softmax(0)
        heads = parts.unflatten(-1, (lse.shape[2], -1))
        self.out[:count] = (weights[..., None] * heads).sum(0).flatten(1)
