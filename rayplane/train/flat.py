"""Where a model chunk's weights and gradients lie on one rank: flat memory, in buckets, and which rows of each weight are whose.

    weights, last layer first    | head | layer 7 | layer 6 | … | embed |
    buckets of BUCKET_BYTES      [   bucket 0    ][  bucket 1   ][  …   ]
    zero 1, dp 2                 [  0   |   1    ][  0   |  1   ]            each dp rank's share, cut between rows of a weight

What tp ranks hold in common with a part of the gradient each is small and stays whole; a tied embedding has a bucket of its own, so
that both ends of the pipe cut it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.parameter import Weight
from rayplane.spec.sharding import is_shared

Tensor = torch.Tensor
BUCKET_BYTES = 4 << 20
ALIGNMENT = 16
"""Elements; each weight starts at a multiple, so that vector instructions meet aligned memory."""
Rows = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A span of the flat memory that is reduced in one go. `sizes`: elements of each dp rank where they share it, else None."""

    weights: tuple[Weight, ...]
    start: int
    stop: int
    sizes: tuple[int, ...] | None

    def share(self, rank: int) -> tuple[int, int]:
        """The span that a dp rank updates."""
        if self.sizes is None:
            return self.start, self.stop
        first = self.start + sum(self.sizes[:rank])
        return first, first + self.sizes[rank]


class FlatMemory:
    """Moves a chunk's weights into one tensor and gives them gradients in another (fp32). `weights` come in the order of forward."""

    def __init__(self, weights: Sequence[Weight], mesh: Mesh):
        order = list(reversed(weights))
        starts = [0]
        for w in order:
            starts.append(starts[-1] + -(-w.numel() // ALIGNMENT) * ALIGNMENT)
        self.start_of = dict(zip(order, starts, strict=False))
        self.grads = torch.zeros(starts[-1], dtype=torch.float32, device=mesh.device)
        self.params = torch.zeros(starts[-1], dtype=order[0].dtype if order else torch.float32, device=mesh.device)
        for w, start in self.start_of.items():
            w.main_grad = self.grads[start : start + w.numel()].view(w.shape)
            self.params[start : start + w.numel()].view(w.shape).copy_(w.data)
            w.data = self.params[start : start + w.numel()].view(w.shape)
        self.buckets = [self._bucket(members, starts[-1], mesh) for members in _group(order, mesh)]
        self.rows = {w: self._rows_of(w, b, mesh.dp.rank) for b in self.buckets for w in b.weights}

    def _bucket(self, members: list[Weight], end: int, mesh: Mesh) -> Bucket:
        following = [s for s in self.start_of.values() if s > self.start_of[members[-1]]]
        start, stop = self.start_of[members[0]], min(following, default=end)
        if not mesh.layout.zero or mesh.dp.size == 1 or any(_in_common(w, mesh) for w in members):
            return Bucket(tuple(members), start, stop, None)
        edges = [start, *(self._edge(members, start + (stop - start) * i // mesh.dp.size) for i in range(1, mesh.dp.size)), stop]
        return Bucket(tuple(members), start, stop, tuple(b - a for a, b in pairwise(edges)))

    def _edge(self, members: list[Weight], wanted: int) -> int:
        """The border between two rows that is nearest below `wanted`."""
        w = next(w for w in reversed(members) if self.start_of[w] <= wanted)
        row = w.numel() // w.shape[0]
        return self.start_of[w] + min((wanted - self.start_of[w]) // row, w.shape[0]) * row

    def _rows_of(self, weight: Weight, bucket: Bucket, rank: int) -> Rows:
        """Rows of a weight that a dp rank updates."""
        first, last = bucket.share(rank)
        start, row = self.start_of[weight], weight.numel() // weight.shape[0]
        low, high = max(first, start), min(last, start + weight.numel())
        return ((low - start) // row, (high - start) // row) if high > low else (0, 0)


def _in_common(weight: Weight, mesh: Mesh) -> bool:
    """Whether tp ranks hold elements in common, each with a part of the gradient."""
    return mesh.tp.size > 1 and (weight.partial or any(is_shared(p.tensor, mesh.tp.size) for p in weight.parts))


def _group(weights: Sequence[Weight], mesh: Mesh) -> list[list[Weight]]:
    """Neighbours that share a bucket."""
    groups: list[list[Weight]] = []
    size, closed = 0, True
    for w in weights:
        alone = w.parts[0].tensor.tied or (mesh.layout.zero > 0 and _in_common(w, mesh))
        if closed or alone:
            groups.append([])
            size = 0
        groups[-1].append(w)
        size += w.numel() * 4
        closed = alone or size >= BUCKET_BYTES
    return groups
