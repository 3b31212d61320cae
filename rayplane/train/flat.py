"""Where a model chunk's weights and gradients lie on one rank: flat memory in buckets, and which rows of each weight are whose.

    weights, last layer first    | head | layer 7 | layer 6 | … | embed |
    buckets of BUCKET_BYTES      [   bucket 0    ][  bucket 1   ][  …   ]      zero 3: one or more for each layer
    cut, over 2 ranks            [  0   |   1    ][  0   |  1   ]              each rank's share, between rows of a weight

What a rank has of a bucket between its uses:

               weights     gradients    optimizer state
    zero 0     all         all          all
    zero 1     all         all          its share
    zero 2     all         its share    its share
    zero 3     its share   its share    its share

What tp ranks hold in common with a part of the gradient each is small and stays whole; a tied embedding has a bucket of its own, so
that both ends of the pipe cut it alike, and between two chunks it is never cut but for the optimizer's state. What tp ranks hold alike,
such as norms, has buckets of its own too: summed and cut in the same places, it stays alike to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.parameter import Weight
from rayplane.spec.sharding import is_shared

Tensor = torch.Tensor
BUCKET_BYTES = 4 << 20
ALIGNMENT = 16
"""Elements; each weight starts at a multiple, so that vector instructions meet aligned memory."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows [first, last) of a weight that one rank updates, and where they lie."""

    weight: Weight
    first: int
    last: int
    param: Tensor
    grad: Tensor


class Bucket:
    """Weights that are reduced in one go, as one flat tensor, and their gradients (fp32) as another."""

    def __init__(self, weights: Sequence[Weight], mesh: Mesh, cut: bool, zero: int):
        self.weights = tuple(weights)
        starts = [0, *accumulate(-(-w.numel() // ALIGNMENT) * ALIGNMENT for w in weights)]
        self._start_of = dict(zip(weights, starts, strict=False))
        self.cut = cut
        self.sizes = self._sizes(starts[-1], mesh.shard.size) if cut else ()
        """Elements of each rank's share; none where all ranks hold all."""
        first = sum(self.sizes[: mesh.shard.rank])
        self._span = (first, first + self.sizes[mesh.shard.rank]) if cut else (0, starts[-1])
        self.copy, self.num_copies = (mesh.replicate.rank, mesh.replicate.size) if cut else (mesh.dp.rank, mesh.dp.size)
        """Which of the ranks that hold this share this is."""
        self.fleeting_grads, self.fleeting_params = cut and zero > 1, cut and zero > 2
        """Whether the whole is there only while it is used."""
        self.grads = torch.zeros(starts[-1], dtype=torch.float32, device=mesh.device)
        self.params = torch.zeros(starts[-1], dtype=weights[0].dtype, device=mesh.device)
        for w, start in self._start_of.items():
            w.main_grad = self.grads[start : start + w.numel()].view(w.shape)
            w.data = self.params[start : start + w.numel()].view(w.shape)
        low, high = self._span
        self.grads_share = torch.zeros_like(self.grads[low:high]) if self.fleeting_grads else self.grads[low:high]
        self.params_share = torch.zeros_like(self.params[low:high]) if self.fleeting_params else self.params[low:high]
        if self.fleeting_grads:
            drop(self.grads)
        if self.fleeting_params:
            drop(self.params)

    def fill(self, write: Callable[[Sequence[Weight]], None]) -> None:
        """Have `write` fill the weights; what is fleeting is there for that only."""
        if self.fleeting_params:
            bring_back(self.params)
        write(self.weights)
        if self.fleeting_params:
            self.params_share.copy_(self.mine(self.params))
            drop(self.params)

    def mine(self, flat: Tensor) -> Tensor:
        """This rank's share of a tensor that is laid out as the bucket is."""
        return flat[self._span[0] : self._span[1]]

    def rows(self) -> list[Rows]:
        """What this rank updates, weight by weight."""
        low, high = self._span
        out = []
        for w, start in self._start_of.items():
            width = w.numel() // w.shape[0]
            begin, end = max(low, start), min(high, start + w.numel())
            if end > begin:
                first, last = (begin - start) // width, (end - start) // width
                shape, here = (last - first, *w.shape[1:]), slice(begin - low, end - low)
                out.append(Rows(w, first, last, self.params_share[here].view(shape), self.grads_share[here].view(shape)))
        return out

    def _sizes(self, total: int, parts: int) -> tuple[int, ...]:
        edges = [0, *(self._edge(total * i // parts) for i in range(1, parts)), total]
        return tuple(b - a for a, b in pairwise(edges))

    def _edge(self, wanted: int) -> int:
        """The border between two rows that is nearest below `wanted`."""
        w = next(w for w in reversed(self.weights) if self._start_of[w] <= wanted)
        row = w.numel() // w.shape[0]
        return self._start_of[w] + min((wanted - self._start_of[w]) // row, w.shape[0]) * row


def drop(flat: Tensor) -> None:
    """Free a tensor's memory; its shape and its views stay."""
    flat.untyped_storage().resize_(0)


def bring_back(flat: Tensor) -> None:
    """Give a tensor memory again, with whatever is in it."""
    flat.untyped_storage().resize_(flat.numel() * flat.element_size())


def is_there(flat: Tensor) -> bool:
    """Whether a tensor has its memory."""
    return flat.untyped_storage().size() > 0


def buckets(units: Sequence[Sequence[Weight]], spanning: set[Weight], mesh: Mesh) -> list[Bucket]:
    """The buckets of a chunk, last layer first. `units` are weights that are used together, in the order of forward; those in
    `spanning` serve two chunks."""
    zero = mesh.layout.zero if mesh.shard.size > 1 else 0
    groups = [list(reversed(unit)) for unit in reversed(units)]
    if zero < 3:
        groups = [[w for unit in groups for w in unit]]
    out = []
    for members in (m for unit in groups for some in _by_likeness(unit, mesh) for m in _split(some, mesh)):
        cut = zero > 0 and not any(_in_common(w, mesh) for w in members)
        out.append(Bucket(members, mesh, cut, min(zero, 1) if spanning.intersection(members) else zero))
    return out


def _by_likeness(weights: Sequence[Weight], mesh: Mesh) -> list[list[Weight]]:
    """Those of which tp ranks hold parts, and those that all hold alike."""
    if mesh.tp.size == 1:
        return [list(weights)]
    alike = [w for w in weights if not any(d.cut for p in w.parts for d in p.tensor.dims)]
    return [[w for w in weights if w not in set(alike)], alike]


def _split(weights: Sequence[Weight], mesh: Mesh) -> list[list[Weight]]:
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


def _in_common(weight: Weight, mesh: Mesh) -> bool:
    """Whether tp ranks hold elements in common, each with a part of the gradient."""
    return mesh.tp.size > 1 and (weight.partial or any(is_shared(p.tensor, mesh.tp.size) for p in weight.parts))
