"""The parts of a model on one rank, for one microbatch: their compute, and the tp communication around it.

            forward                       backward (with the input gradient)
layer       2 sums of the output          2 sums of the input's gradient; again 2 of the output under full recomputation
embedding   1 sum                         under sp its other half
head        3 numbers per token           1 sum; under sp half of it in the forward

A sum of an activation over tp is an all-reduce; under sp a reduce-scatter and an all-gather, each on its own side of the norms.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rayplane.plan import compute
from rayplane.plan.compute import NONE, Microbatch, Seconds
from rayplane.plan.network import Group, Network


@dataclass(frozen=True, slots=True)
class Piece:
    """Compute and tp communication."""

    compute: Seconds
    tp: Seconds

    @property
    def total_s(self) -> float:
        """Everything, forward and backward."""
        return self.compute.total + self.tp.total


@dataclass(frozen=True, slots=True)
class Pieces:
    """What chunks are made of, and the chunks already put together."""

    layer: Piece
    embed: Piece
    head: Piece
    _known: dict[tuple[int, bool, bool], Piece] = field(default_factory=dict)

    def chunk(self, layers: int, first: bool, last: bool) -> Piece:
        """So many layers, with the embedding and the head where the chunk has them."""
        key = (layers, first, last)
        if key not in self._known:
            out = Piece(NONE, NONE)
            for piece, count in ((self.layer, layers), (self.embed, first), (self.head, last)):
                out = Piece(out.compute.plus(piece.compute, count), out.tp.plus(piece.tp, count))
            self._known[key] = out
        return self._known[key]


def pieces(work: Microbatch, network: Network, group: Group) -> Pieces:
    """Of one microbatch; `group` is the shape of the tp groups."""
    layer, embed, head = compute.layer(work), compute.embedding(work), compute.head(work)
    if group.size == 1:
        return Pieces(Piece(layer, NONE), Piece(embed, NONE), Piece(head, NONE))
    half_s = network.all_gather_s(group, work.activation_bytes)
    sum_s = 2 * half_s if work.sp else network.all_reduce_s(group, work.activation_bytes)
    early_s = half_s if work.sp else 0.0
    numbers_s = 3 * network.all_reduce_s(group, 4 * work.tokens)
    again_s = 2 * sum_s if work.recompute == "full" else 0.0
    jitter = work.device.jitter
    return Pieces(
        Piece(layer, Seconds(2 * sum_s, 2 * sum_s + again_s, 0.0).plus(layer, jitter)),
        Piece(embed, Seconds(sum_s - early_s, early_s, 0.0)),
        Piece(head, Seconds(numbers_s + early_s, sum_s - early_s, 0.0).plus(head, jitter)),
    )
