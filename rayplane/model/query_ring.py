"""Attention over keys that cp ranks of several hosts, or on GPUs, keep: queries go round the ranks, a hop behind each part of the work.

    hop 0    own queries over the keys kept here        and on their way to the next rank
    hop 1    those of the rank before over them         …
    then     log-sum-exps [T, h] gathered, parts weighed by e^(lse - total), and summed on the rank of each query

Queries go round and keys stay ("pass-Q" of Yang et al., Context Parallelism for Scalable Million-Token Inference, 2024): a step moves
bytes for its own tokens, however long the sequences are that they belong to, and decode is the same as a chunk of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from rayplane.comm.communicator import Communicator
from rayplane.kernels.paged import Attend
from rayplane.kernels.records import Step
from rayplane.model.paged import PagedStep

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class QueryRing:
    """Rotated queries of qkv -> out, each [tokens, …]; `part` is the attention of `part.qkv`, all queries, over the keys kept here."""

    cp: Communicator
    qkv: Tensor
    out: Tensor
    part: Attend
    run: Callable[[Step], None]
    """Runs `part`."""

    def record(self) -> None:
        return None

    def twin(self, step: Step) -> None:
        assert isinstance(step, PagedStep) and step.stripes is not None
        counts, queries = step.stripes.counts, self.part.qkv
        firsts = [0, *accumulate(counts)]
        held, at = self.qkv[: counts[self.cp.rank], : queries.shape[1]].contiguous(), self.cp.rank
        for hop in range(self.cp.size):
            before = (at - 1) % self.cp.size
            arrived = self.cp.start_shift(held, (counts[before], queries.shape[1])) if hop < self.cp.size - 1 else None
            queries[firsts[at] : firsts[at + 1]] = held
            if counts[at]:
                self.run(step.of_rank(at))
            if arrived is not None:
                held, at = arrived(), before
        self._merge(firsts[-1], counts)

    def _merge(self, total: int, counts: tuple[int, ...]) -> None:
        assert self.part.lse is not None
        lse = self.part.lse[:total]
        every = self.cp.all_gather(lse[None])  # [cp, T, h]
        weights = (lse - every.logsumexp(0)).exp()
        parts = self.part.out[:total].unflatten(-1, (lse.shape[1], -1)) * weights[..., None]
        self.out[: counts[self.cp.rank]] = self.cp.reduce_scatter(parts.flatten(1), counts)
