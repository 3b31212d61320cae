"""What a stage's rank sends in a step on each mesh axis: every collective and transfer, its bytes from the shapes.

    all-reduce of N bytes            2N (p-1)/p sent by a rank
    all-gather, reduce-scatter        N (p-1)/p
    send                              N

Summed over all ranks these are the closed forms that `benchmarks/comm_bytes.py` holds against measured bytes. Left out: padding of
weights to whole lines, and the four numbers that all ranks agree on. Of uneven cuts the fullest rank's weights and keys count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rayplane.plan.choice.report import size
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.machine.topology import Topology
from rayplane.plan.step.compute import ITEM_BYTES, Microbatch
from rayplane.plan.step.pipe import chunks_of_stages, recomputed
from rayplane.plan.step.replicas import LEAST_BUCKET_BYTES
from rayplane.plan.why.explanation import Traffic
from rayplane.spec.layout import Layout
from rayplane.spec.sharding import is_shared

Operation = Literal["all-reduce", "all-gather", "reduce-scatter", "send"]
SENT = {"all-reduce": "2N(p-1)/p", "all-gather": "N(p-1)/p", "reduce-scatter": "N(p-1)/p", "send": "N"}


@dataclass(frozen=True, slots=True)
class Message:
    """Equal calls of one operation by one rank in one step."""

    what: str
    op: Operation
    group: Group
    """Of a send: the two ends, and whether they share an island."""
    calls: float
    num_bytes: float
    """Of one call: the whole tensor, before the factor of the algorithm."""
    shape: str
    """How that came about."""

    @property
    def call_bytes(self) -> float:
        """What one call sends from this rank."""
        p = self.group.size
        factor = {"all-reduce": 2 * (p - 1) / p, "send": 1.0}.get(self.op, (p - 1) / p)
        return factor * self.num_bytes

    @property
    def sent_bytes(self) -> float:
        """What all calls send from this rank."""
        return self.calls * self.call_bytes

    def seconds(self, network: Network) -> float:
        """Of all calls, with nothing beside them."""
        match self.op:
            case "all-reduce":
                return self.calls * network.all_reduce_s(self.group, self.num_bytes)
            case "send":
                return self.calls * network.p2p_s(self.num_bytes, self.group.inside)
            case _:
                return self.calls * network.all_gather_s(self.group, self.num_bytes)

    def traffic(self) -> Traffic:
        """For a reader."""
        p, sent = self.group.size, f"{SENT[self.op]} = {size(self.call_bytes)}"
        each = f"{self.shape} = {size(self.num_bytes)}" + ("" if self.op == "send" else f"; p = {p}: {sent} a call")
        arithmetic = f"{each}; {self.calls:,.5g} calls: {size(self.sent_bytes)}"
        return Traffic(f"{self.op} of {self.what}", self.calls, round(self.num_bytes), round(self.sent_bytes), arithmetic)


@dataclass(frozen=True, slots=True)
class Passage:
    """The microbatches of a step on the ranks of one stage."""

    work: Microbatch
    layout: Layout
    """With its boundaries."""
    topology: Topology
    rounds: float
    """Full microbatches."""
    stage: int

    @property
    def chunks(self) -> tuple[int, ...]:
        """Of this stage."""
        return chunks_of_stages(self.layout)[self.stage]

    @property
    def first(self) -> bool:
        """Whether the embedding is here."""
        return 0 in self.chunks

    @property
    def last(self) -> bool:
        """Whether the head is here."""
        return self.layout.num_chunks - 1 in self.chunks

    @property
    def layers(self) -> int:
        """Of all its chunks."""
        return sum(self.layout.boundaries[c] for c in self.chunks)

    @property
    def again(self) -> int:
        """Of those, how many compute something again."""
        return sum(recomputed(self.layout, self.layout.boundaries[c]) for c in self.chunks)

    @property
    def tokens(self) -> float:
        """Of a microbatch on a rank; where cp cuts unevenly, on average."""
        return self.work.samples * self.work.seq_len / self.layout.cp

    @property
    def item(self) -> int:
        """Bytes of an element of an activation."""
        return ITEM_BYTES[self.work.precision]

    @property
    def rows(self) -> str:
        """The tokens in words."""
        return f"{self.work.samples} x {self.work.seq_len / self.layout.cp:,.5g} tokens"


def over_tp(of: Passage) -> Iterator[Message]:
    """Sums of activations, whole or under sp in halves; three numbers a token for the loss; gradients that ranks hold parts of."""
    group, hidden = of.topology.tp_group(of.layout), of.work.model.hidden
    activation, shape = of.tokens * hidden * of.item, f"{of.rows} x {hidden} x {of.item} B"
    counted = _halves(of) if of.layout.sp else _sums(of)
    for op, what, calls in counted:
        if calls:
            yield Message(what, op, group, calls * of.rounds, activation, shape)
    if of.last:
        yield Message("the loss's maximum, sum and target", "all-reduce", group, 3 * of.rounds, 4 * of.tokens, f"{of.rows} x 4 B")
    if held := held_in_common(of):
        yield Message("gradients that tp ranks have parts of", "all-reduce", group, 1, 4.0 * held, f"{held:,} parameters x 4 B")


def _sums(of: Passage) -> list[tuple[Operation, str, int]]:
    """(operation, what, calls a microbatch)."""
    again = of.again if of.layout.recompute == "full" else 0
    return [
        ("all-reduce", "a layer's outputs, forward", 2 * of.layers),
        ("all-reduce", "a layer's input gradients, backward", 2 * of.layers),
        ("all-reduce", "attention's output, computed again", again),
        ("all-reduce", "the embedding's output, forward", int(of.first)),
        ("all-reduce", "the head's input gradient", int(of.last)),
    ]


def _halves(of: Passage) -> list[tuple[Operation, str, int]]:
    again = of.again if of.layout.recompute == "full" else 0
    return [
        ("all-gather", "a layer's inputs, forward", 2 * of.layers),
        ("reduce-scatter", "a layer's outputs, forward", 2 * of.layers),
        ("all-gather", "a layer's output gradients, backward", 2 * of.layers),
        ("all-gather", "a layer's inputs again, for its weights' gradients", 2 * of.layers),
        ("reduce-scatter", "a layer's input gradients, backward", 2 * of.layers),
        ("all-gather", "a layer's inputs, computed again", 2 * again),
        ("reduce-scatter", "attention's output, computed again", again),
        ("reduce-scatter", "the embedding's output", int(of.first)),
        ("all-gather", "the embedding's output gradient", int(of.first)),
        ("all-gather", "the head's input", int(of.last)),
        ("reduce-scatter", "the head's input gradient", int(of.last)),
    ]


def held_in_common(of: Passage) -> int:
    """Parameters of the stage of whose gradients tp ranks have a part each: shared KV heads, norms of heads, under sp all norms."""
    model, out = of.work.model, 0
    for tensor in model.tensors():
        here = (of.first and tensor.layer < 0) or (of.last and tensor.layer == model.layers)
        times = of.layers if tensor.layer == 0 else int(here)
        whole = not any(d.cut for d in tensor.dims)
        of_heads = tensor.name.endswith(("q_norm", "k_norm"))
        if is_shared(tensor, of.layout.tp) or (whole and (of.layout.sp or of_heads)):
            out += times * tensor.numel
    return out


def over_cp(of: Passage) -> Iterator[Message]:
    """Keys and values for forward and backward, and their gradients in fp32."""
    cp, width, group = of.layout.cp, of.work.share.kv_width, of.topology.cp_group(of.layout)
    calls = of.layers * of.rounds
    again = of.again * of.rounds
    elements, shape = 2 * width * of.tokens, f"{of.rows} x 2 x {width}"
    if of.layout.cp_method == "gather":
        whole, shape = cp * elements, f"{cp} x {shape}"
        yield Message("keys and values", "all-gather", group, 2 * calls + again, whole * of.item, f"{shape} x {of.item} B")
        yield Message("gradients of keys and values", "reduce-scatter", group, calls, 4 * whole, f"{shape} x 4 B")
        return
    hops = (cp - 1) * (2 * calls + again)
    yield Message("keys and values to the next rank", "send", group, hops, elements * of.item, f"{shape} x {of.item} B")
    yield Message("gradients of keys and values to the next rank", "send", group, cp * calls, 4 * elements, f"{shape} x 4 B")


def over_pp(of: Passage) -> Iterator[Message]:
    """Activations to the next stage and gradients to the one before; a tied embedding's gradient between first and last."""
    layout, last = of.layout, of.layout.num_chunks - 1
    ways = [(c, c + 1, "activations to the next stage") for c in of.chunks if c < last]
    ways += [(c, c - 1, "gradients to the stage before") for c in of.chunks if c]
    inside = of.topology.hops_inside(layout)
    cut = layout.tp if layout.sp else 1
    shape = f"{of.rows} x {of.work.model.hidden} x {of.item} B" + (f" / {cut}" if cut > 1 else "")
    num_bytes = of.tokens * of.work.model.hidden * of.item / cut
    counts: dict[tuple[str, bool], int] = {}
    for here, there, what in ways:
        a, b = sorted((layout.stage_of_chunk(here), layout.stage_of_chunk(there)))
        if a != b:
            key = (what, all(inside[a:b]))
            counts[key] = counts.get(key, 0) + 1
    for (what, near), count in counts.items():
        yield Message(what, "send", Group(2, 2 if near else 1), count * of.rounds, num_bytes, shape)
    if of.work.model.tied and of.first != of.last:
        tied, ends = of.work.share.tied_params, Group(2, 2 if all(inside) else 1)
        yield Message("a tied embedding's gradient", "all-reduce", ends, 1, 4.0 * tied, f"{tied:,} parameters x 4 B")


def buckets(of: Passage, params: int) -> int:
    """In how many calls the gradients or weights of the stage travel: a matrix each, or a bucket."""
    by_size = math.ceil(4 * params / LEAST_BUCKET_BYTES)
    return max(1, min(max(1, of.layers) * of.work.practice.calls_per_layer, by_size))
