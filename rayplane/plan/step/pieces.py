"""The parts of a model on one rank, for one microbatch: their compute, and the tp and cp communication around it.

            forward                       backward (with the input gradient)
layer       2 sums of the output          2 sums of the input's gradient; under sp 2 all-gathers of the input, of which a rank
                                          kept its rows; under full recomputation again 2 sums of the output
embedding   1 sum                         under sp its other half
head        3 numbers per token           1 sum; under sp half of it in the forward
attention   cp-1 hops of keys, values     the same, and cp hops of their gradients, in fp32, that nothing hides
            or their all-gather           the same, and a reduce-scatter of their gradients

A sum of an activation over tp is an all-reduce; under sp a reduce-scatter and an all-gather, each on its own side of the norms. The
backward's sums, and its all-gathers of the input, run beside products, unless weight gradients are put off (zb). A hop of the ring
hides behind the attention of the block before. All that as far as the device can do both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rayplane.plan.machine.network import Group, Network, beside_s
from rayplane.plan.step import compute
from rayplane.plan.step.compute import ITEM_BYTES, NONE, Microbatch, Seconds


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
    again: Piece
    """A layer of which something is computed again in backward."""
    embed: Piece
    head: Piece
    _known: dict[tuple[int, int, bool, bool], Piece] = field(default_factory=dict)

    def layer_s(self, again: float) -> float:
        """A layer on average, where a share of them is computed again."""
        return self.layer.total_s + again * (self.again.total_s - self.layer.total_s)

    def chunk(self, layers: int, again: int, first: bool, last: bool) -> Piece:
        """So many layers, some of them computed again, with the embedding and the head where the chunk has them."""
        key = (layers, again, first, last)
        if key not in self._known:
            out = Piece(NONE, NONE)
            parts = ((self.layer, layers - again), (self.again, again), (self.embed, first), (self.head, last))
            for piece, count in parts:
                both = ((out.compute, piece.compute), (out.tp, piece.tp), (out.cp, piece.cp))
                out = Piece(*(a.plus(b, count) for a, b in both))
            self._known[key] = out
        return self._known[key]


def pieces(work: Microbatch, network: Network, tp: Group, ring: Ring) -> Pieces:
    """Of one microbatch, for the shape of the tp groups and the way keys and values go."""
    embed, head = compute.embedding(work), compute.head(work)
    products = compute.layer_products(work)
    layer = again = _layer(work.without_recompute, products, network, tp, ring)
    if work.recompute != "none":
        again = _layer(work, products, network, tp, ring)
    if tp.size == 1:
        return Pieces(layer, again, Piece(embed, NONE), Piece(head, NONE))
    half_s = network.all_gather_s(tp, work.activation_bytes)
    sum_s = 2 * half_s if work.sp else network.all_reduce_s(tp, work.activation_bytes)
    early_s = half_s if work.sp else 0.0
    if work.practice.gathered_logits:
        numbers_s = network.all_gather_s(tp, work.tokens * work.model.vocab * ITEM_BYTES[work.precision])
    else:
        numbers_s = 3 * network.all_reduce_s(tp, 4 * work.tokens)
    return Pieces(
        layer,
        again,
        Piece(embed, Seconds(sum_s - early_s, early_s, 0.0)),
        Piece(head, Seconds(numbers_s + early_s, sum_s - early_s, 0.0).plus(head, work.device.jitter)),
    )


def _layer(work: Microbatch, products: Seconds, network: Network, tp: Group, ring: Ring) -> Piece:
    layer, cp = compute.layer(work, products), _context(work, network, ring)
    cp = cp.plus(layer, work.device.ratios.cp_jitter) if ring.group.size > 1 else cp
    if tp.size == 1:
        return Piece(layer, NONE, cp)
    half_s = network.all_gather_s(tp, work.activation_bytes)
    sum_s = 2 * half_s if work.sp else network.all_reduce_s(tp, work.activation_bytes)
    again_s = 2 * sum_s if work.recompute == "full" else 0.0
    # Behind a row-parallel weight the gradient is whole, or under sp has to be gathered before anything else.
    waited_s = 2 * half_s if work.sp else 0.0
    sums_s = 4 * half_s if work.sp else 2 * sum_s
    hides_s = products.weight_grad + (products.input_grad / 2 if work.sp else 0.0)
    overlap = network.device.overlap if work.practice.overlap_tp else 0.0
    exposed_s = beside_s(sums_s, hides_s, overlap)
    return Piece(layer, Seconds(2 * sum_s, waited_s + exposed_s + again_s, 0.0).plus(layer, work.device.jitter), cp)


def _context(work: Microbatch, network: Network, ring: Ring) -> Seconds:
    """What one layer's attention waits for over cp."""
    cp = ring.group.size
    if cp == 1:
        return NONE
    elements = 2 * work.share.kv_width * work.tokens
    grad_item = 2 if work.practice.overlap_cp else 4
    kv_bytes, grad_bytes = elements * ITEM_BYTES[work.precision], grad_item * elements
    if ring.method == "gather":
        forward_s = network.all_gather_s(ring.group, cp * kv_bytes)
        backward_s = forward_s + network.all_gather_s(ring.group, cp * grad_bytes)
    else:
        hidden_s, hidden_back_s = (network.device.overlap * s / cp for s in compute.attention_s(work))
        hop_s, grad_s = (network.p2p_s(n, ring.group.inside) for n in (kv_bytes, grad_bytes))
        forward_s = (cp - 1) * max(0.0, hop_s - hidden_s)
        if work.practice.overlap_cp:
            backward_s = (cp - 1) * max(0.0, hop_s + grad_s - hidden_back_s) + grad_s
        else:
            backward_s = (cp - 1) * max(0.0, hop_s - hidden_back_s) + cp * grad_s
    again_s = 0.0 if work.recompute == "none" else forward_s
    return Seconds(forward_s, backward_s + again_s, 0.0)
