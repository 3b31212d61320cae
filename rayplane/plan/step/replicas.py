"""What dp x cp ranks, which hold the same weights, have to tell each other in a step, and how much of it compute does not hide.

             behind the last backward    behind every backward   before forward and backward   once, hidden by nothing
    zero 0   all-reduce
    zero 1   reduce-scatter                                                                    weights' all-gather
    zero 2                               reduce-scatter                                        weights' all-gather
    zero 3                               reduce-scatter          all-gather, a layer ahead

Where zero cuts over a part of the ranks (`shard`), these are the collectives of that part, and the share's all-reduce over the other
parts comes on top, once. Embedding and head are gathered in forward only. The first unit that a pass needs is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.machine.kernels import memory_s
from rayplane.plan.machine.network import Group, Network, beside_s
from rayplane.plan.machine.topology import Topology
from rayplane.plan.step.compute import NONE, Microbatch, Seconds
from rayplane.plan.step.draft import SPLIT
from rayplane.plan.step.practice import Practice
from rayplane.plan.step.share import Share
from rayplane.plan.step.states import GRADIENT_BYTES, WEIGHT_BYTES
from rayplane.spec.layout import Layout

LEAST_BUCKET_BYTES = 4 << 20
"""Of gradients that are reduced in one go (`train.flat`; a test holds the two equal)."""
BUCKET_BYTES = 25_000_000
"""The last gradient bucket has no backward left to hide behind (the size that torch's DDP uses)."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A chunk as its replicas see it: its parts and the compute that can hide them. Chunks that are alike share one."""

    layers: int
    first: bool
    last: bool
    compute: Seconds
    params: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """The ranks that hold the same weights under a layout: all of them, those over which zero cuts, and those with the same share."""

    network: Network
    layout: Layout
    precision: str
    practice: Practice
    everyone: Group
    shard: Group
    copies: Group

    @classmethod
    def of(cls, layout: Layout, topology: Topology, network: Network, work: Microbatch) -> Replicas:
        """As they lie on the islands."""
        groups = topology.dp_group(layout), topology.shard_group(layout), topology.copies_group(layout)
        return cls(network, layout, work.precision, work.practice, *groups)

    def each_s(self, of: Share, unit: Unit) -> Seconds:
        """What a microbatch waits for under zero 2 and 3, beyond its compute."""
        if self.layout.zero < 2 or self.shard.size == 1:
            return NONE
        reduce_s, compute = self._reduce_scatter_s(unit.params, self._calls(unit.layers, unit.params)), unit.compute
        if self.layout.zero == 2:
            return Seconds(0.0, 0.0, self._exposed_s(reduce_s, self._hides_s(compute)))
        layer_s = self._gather_s(of.layer_params, self._calls(1, of.layer_params))
        copies_s = memory_s(self.network.device, self.practice.gathered_copies * unit.params / 2)
        embed_s, head_s = (self._gather_s(n, 1) for n in (of.embed_params, of.head_params))
        first_s = embed_s if unit.first else layer_s if unit.layers else head_s
        all_s = unit.layers * layer_s + unit.first * embed_s + unit.last * head_s
        forward_s = first_s + self._exposed_s(all_s - first_s, compute.forward)
        waits_s = layer_s if unit.layers else 0.0
        passes = 2 if self.practice.regathered and self.layout.recompute == "full" else 1
        again_s = passes * unit.layers * layer_s - waits_s
        if self.layout.schedule in SPLIT:
            input_s = waits_s + self._exposed_s(again_s, compute.input_grad)
            return Seconds(forward_s + copies_s, input_s + copies_s, self._exposed_s(reduce_s, compute.weight_grad))
        return Seconds(forward_s + copies_s, waits_s + copies_s, self._exposed_s(again_s + reduce_s, compute.backward))

    def reduce_s(self, units: Sequence[Unit], follow: int) -> tuple[float, ...]:
        """For the chunks of a stage in model order: what is left of their gradients' reductions when the stage has computed all.

        The first one's last backward comes last; of each of the others' `follow` backwards come after the one before it is through.
        """
        if self.everyone.size == 1:
            return (0.0,) * len(units)
        across = [self._across_s(u) for u in units]
        if not self._overlaps:
            own = [0.0 if self._fleeting else self._inside_s(u.params, self._calls(u.layers, u.params)) for u in units]
            return tuple(a + o for a, o in zip(across, own, strict=True))
        first, others = units[0], units[1:]
        tail_s = self._inside_s(min(BUCKET_BYTES // self.practice.reduce_bytes, first.params), 1)
        if self._fleeting:
            return (across[0] + tail_s, *across[1:])
        hides_s = self._hides_s(first.compute)
        meanwhile_s = hides_s + sum(follow * self._hides_s(u.compute) for u in others)
        own_s = self._exposed_s(self._inside_s(first.params, self._calls(first.layers, first.params)), hides_s)
        all_s = self._exposed_s(sum(self._inside_s(u.params, self._calls(u.layers, u.params)) for u in units), meanwhile_s)
        return (across[0] + max(tail_s, own_s, all_s), *across[1:])

    def weights_s(self, unit: Unit, spanning: int) -> float:
        """The next forward of the first chunk waits for the weights that other ranks updated, unless it gathers them layer by layer."""
        if self.shard.size == 1:
            return 0.0
        if self.layout.zero > 2:
            return self._gather_s(spanning, 1)
        gather_s = self._gather_s(unit.params, self._calls(unit.layers, unit.params))
        return self._exposed_s(gather_s, unit.compute.forward) if self.practice.overlap_gather else gather_s

    @property
    def _fleeting(self) -> bool:
        """Whether gradients are reduced behind every backward."""
        return self.layout.zero > 1 and self.shard.size > 1

    def _inside_s(self, params: int, calls: float) -> float:
        """Reduction over the ranks that zero cuts over, or over all."""
        if self.shard.size == 1 or (self.practice.whole_reduction and self.layout.zero == 1):
            return self.network.all_reduce_s(self.everyone, self.practice.reduce_bytes * params, calls)
        return self._reduce_scatter_s(params, calls)

    def _across_s(self, unit: Unit) -> float:
        """Reduction of a share over those that hold it."""
        if self.shard.size == 1:
            return 0.0
        share_bytes = self.practice.reduce_bytes * unit.params / self.shard.size
        return self.network.all_reduce_s(self.copies, share_bytes, self._calls(unit.layers, unit.params))

    @property
    def _overlaps(self) -> bool:
        return self.practice.overlap_dp and self.network.device.overlap > 0

    def _hides_s(self, compute: Seconds) -> float:
        """The part of a backward beside which gradients become complete."""
        return compute.weight_grad if self.layout.schedule in SPLIT else compute.backward

    def _exposed_s(self, collectives_s: float, compute_s: float) -> float:
        """What collectives beside compute add to it."""
        return beside_s(collectives_s, compute_s, self.network.device.overlap if self._overlaps else 0.0)

    def _calls(self, layers: int, params: int) -> int:
        """Collectives for the weights of some layers: a matrix each, or a bucket."""
        return max(1, min(layers * self.practice.calls_per_layer, math.ceil(GRADIENT_BYTES * params / LEAST_BUCKET_BYTES)))

    def _reduce_scatter_s(self, params: int, calls: float) -> float:
        return self.network.all_gather_s(self.shard, self.practice.reduce_bytes * params, calls)

    def _gather_s(self, params: int, calls: float) -> float:
        return self.network.all_gather_s(self.shard, WEIGHT_BYTES[self.precision] * params, calls)
