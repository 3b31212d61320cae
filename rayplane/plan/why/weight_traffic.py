"""What ranks that hold the same weights send each other in a step: gradients, and under zero weights.

N parameters of a stage, over the p = dp x cp ranks with the same ones, in m microbatches (see `docs/parallelism.md`):

    zero 0   all-reduce of gradients                             once
    zero 1   reduce-scatter of gradients, all-gather of weights  once each
    zero 2   reduce-scatter of gradients                         m times; all-gather of weights once
    zero 3   all-gather of weights twice, reduce-scatter         m times; embedding and head are gathered in forward only

With `shard` these stay among neighbours, and each share of the gradients is all-reduced over those that hold it, once.
"""

from __future__ import annotations

from collections.abc import Iterator

from rayplane.plan.machine.network import Group
from rayplane.plan.step.states import GRADIENT_BYTES, WEIGHT_BYTES, parameters
from rayplane.plan.why.traffic import Message, Operation, Passage, buckets


def over_dp(of: Passage) -> Iterator[Message]:
    """Of one rank of a stage."""
    layout, topology = of.layout, of.topology
    held = parameters(of.work.share, layout, of.chunks)
    everyone, shard, copies = topology.dp_group(layout), topology.shard_group(layout), topology.copies_group(layout)
    m = _microbatches(of)
    if not layout.zero:
        yield _gradients("all-reduce", everyone, of, held.cut + held.common, 1)
        return
    apart = held.spanning if layout.zero > 1 else 0
    cut = held.cut - apart
    if layout.zero == 3:
        yield from _gathered(of, shard, cut, m)
    yield _gradients("reduce-scatter", shard, of, cut, m if layout.zero > 1 else 1)
    if layout.zero < 3:
        yield _weights("all weights after the update", shard, of, cut, 1)
    if apart:
        yield _gradients("reduce-scatter", shard, of, apart, 1)
        yield _weights("the tied embedding after the update", shard, of, apart, 1)
    if held.common:
        yield _gradients("all-reduce", everyone, of, held.common, 1)
    if copies.size > 1:
        share, calls = cut / shard.size, buckets(of, cut)
        shape = f"{cut:,} parameters x {GRADIENT_BYTES} B / {shard.size} in {calls} buckets"
        yield Message("shares of gradients across islands", "all-reduce", copies, calls, GRADIENT_BYTES * share / calls, shape)


def _gathered(of: Passage, shard: Group, cut: int, m: int) -> Iterator[Message]:
    """Under zero 3, for every microbatch; a tied embedding on one stage is gathered as embedding and as head."""
    share, model = of.work.share, of.work.model
    norm = sum(t.numel for t in model.tensors() if t.layer == model.layers and not any(d.cut for d in t.dims))
    ends = of.first * share.embed_params + of.last * (share.head_params - norm)
    if of.first or of.last:
        # A tied embedding counts at one end where both are here; where they are not it stays whole, and is not among the cut.
        ends -= share.tied_params
    twice = share.tied_params if of.first and of.last else 0
    yield _weights("weights for forward, layer by layer", shard, of, cut + twice, m)
    yield _weights("weights for backward, layer by layer", shard, of, cut - ends, m)


def _gradients(op: Operation, group: Group, of: Passage, params: int, times: int) -> Message:
    calls = buckets(of, params)
    shape = f"{params:,} parameters x {GRADIENT_BYTES} B in {calls} bucket{'s' if calls > 1 else ''}"
    return Message("gradients", op, group, times * calls, GRADIENT_BYTES * params / calls, shape)


def _weights(what: str, group: Group, of: Passage, params: int, times: int) -> Message:
    each, calls = WEIGHT_BYTES[of.work.precision], buckets(of, params)
    shape = f"{params:,} parameters x {each} B in {calls} bucket{'s' if calls > 1 else ''}"
    return Message(what, "all-gather", group, times * calls, each * params / calls, shape)


def _microbatches(of: Passage) -> int:
    """Of the busiest replica, small ones included."""
    return -(-round(of.rounds * of.work.samples) // of.work.samples)
