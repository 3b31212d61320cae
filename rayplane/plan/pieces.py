"""The parts of a model on one rank, for one microbatch: their compute, and the tp and cp communication around it.

            forward                       backward (with the input gradient)
layer       2 sums of the output          2 sums of the input's gradient; again 2 of the output under full recomputation
embedding   1 sum                         under sp its other half
head        3 numbers per token           1 sum; under sp half of it in the forward
attention   cp-1 hops of keys, values     the same, and cp hops of their gradients, in fp32, that nothing hides
            or their all-gather           the same, and a reduce-scatter of their gradients

A sum of an activation over tp is an all-reduce; under sp a reduce-scatter and an all-gather, each on its own side of the norms.
A hop of the ring hides behind the attention of the block before, as far as the device can do both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rayplane.plan import compute
from rayplane.plan.compute import ATTENTION_BACKWARD, ITEM_BYTES, NONE, Microbatch, Seconds
from rayplane.plan.network import Group, Network


@dataclass(frozen=True, slots=True)
class Piece:
    """Compute, and what communication leaves exposed."""

    compute: Seconds
    tp: Seconds
    cp: Seconds = NONE

    @property
    def total_s(self) -> float:
        """Everything, forward and backward."""
        return self.compute.total + self.tp.total + self.cp.total


@dataclass(frozen=True, slots=True)
class Ring:
    """How keys and values go round: the shape of the cp groups and the method."""

    group: Group
    method: str


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
                both = ((out.compute, piece.compute), (out.tp, piece.tp), (out.cp, piece.cp))
                out = Piece(*(a.plus(b, count) for a, b in both))
            self._known[key] = out
        return self._known[key]


def pieces(work: Microbatch, network: Network, tp: Group, ring: Ring) -> Pieces:
    """Of one microbatch, for the shape of the tp groups and the way keys and values go."""
    layer, embed, head = compute.layer(work), compute.embedding(work), compute.head(work)
    cp = _context(work, network, ring)
    if tp.size == 1:
        return Pieces(Piece(layer, NONE, cp), Piece(embed, NONE), Piece(head, NONE))
    half_s = network.all_gather_s(tp, work.activation_bytes)
    sum_s = 2 * half_s if work.sp else network.all_reduce_s(tp, work.activation_bytes)
    early_s = half_s if work.sp else 0.0
    numbers_s = 3 * network.all_reduce_s(tp, 4 * work.tokens)
    again_s = 2 * sum_s if work.recompute == "full" else 0.0
    jitter = work.device.jitter
    return Pieces(
        Piece(layer, Seconds(2 * sum_s, 2 * sum_s + again_s, 0.0).plus(layer, jitter), cp),
        Piece(embed, Seconds(sum_s - early_s, early_s, 0.0)),
        Piece(head, Seconds(numbers_s + early_s, sum_s - early_s, 0.0).plus(head, jitter)),
    )


def _context(work: Microbatch, network: Network, ring: Ring) -> Seconds:
    """What one layer's attention waits for over cp."""
    cp = ring.group.size
    if cp == 1:
        return NONE
    elements = 2 * work.share.kv_width * work.tokens
    kv_bytes, grad_bytes = elements * ITEM_BYTES[work.precision], 4 * elements
    if ring.method == "gather":
        forward_s = network.all_gather_s(ring.group, cp * kv_bytes)
        backward_s = forward_s + network.all_gather_s(ring.group, cp * grad_bytes)
    else:
        hidden_s = network.device.overlap * compute.attention_s(work) / cp
        hop_s = network.p2p_s(kv_bytes, ring.group.inside)
        forward_s = (cp - 1) * max(0.0, hop_s - hidden_s)
        backward_s = (cp - 1) * max(0.0, hop_s - ATTENTION_BACKWARD * hidden_s) + cp * network.p2p_s(grad_bytes, ring.group.inside)
    again_s = 0.0 if work.recompute == "none" else forward_s
    return Seconds(forward_s, backward_s + again_s, 0.0)
