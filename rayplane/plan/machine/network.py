"""How long a collective or a message takes, from its bytes, the shape of its group and the link that binds.

Over p ranks a ring moves, per rank, of a tensor of N bytes

    all-gather, reduce-scatter     N (p-1)/p      in   p-1  steps
    all-reduce                    2N (p-1)/p      in 2(p-1) steps, or as a tree in 2 log2(p) steps of 2N altogether

and each step costs a latency, that of the fabric where the ring leaves an island. A group that leaves its islands is bound by the
network cards of its members in one island, since each device has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayplane.plan.machine.catalog import DeviceKind
from rayplane.plan.machine.ratios import Points, seconds_at
from rayplane.spec.cluster import Link, Links

OVERLAPPED_SLOWDOWN = 1.2
"""A collective beside compute takes 15-30% longer."""
STOLEN = 0.05
"""What it takes from the compute beside it, of its own time: cores and memory bandwidth."""


def beside_s(collectives_s: float, compute_s: float, overlap: float) -> float:
    """What collectives beside compute add to it."""
    if not overlap:
        return collectives_s
    slowed_s, hides_s = OVERLAPPED_SLOWDOWN * collectives_s, overlap * compute_s
    return max(0.0, slowed_s - hides_s) + STOLEN * min(slowed_s, hides_s)


@dataclass(frozen=True, slots=True)
class Group:
    """The shape of a communicator: its members, and how many of them share an island."""

    size: int
    per_island: int

    @property
    def inside(self) -> bool:
        """Whether all members are in one island."""
        return self.size <= self.per_island


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a cluster and what its devices' collectives reach of them."""

    links: Links
    device: DeviceKind

    def binding(self, group: Group) -> Link:
        """The link that binds a group: bandwidth per member and latency of a step."""
        if group.inside:
            return self.links.island
        fabric = self.links.fabric
        cards = fabric.gbytes_s * group.per_island
        return Link(min(cards, self.links.island.gbytes_s) if group.per_island > 1 else cards, fabric.latency_us)

    def all_reduce_s(self, group: Group, num_bytes: float, calls: float = 1) -> float:
        """Seconds of all-reducing `num_bytes` in so many calls."""
        p = group.size
        if p == 1 or num_bytes <= 0:
            return 0.0
        if curve := self._curve("all_reduce", group):
            return calls * seconds_at(curve, num_bytes / calls)
        link = self.binding(group)
        step_s = calls * (link.latency_us + self.device.ring_step_us) * 1e-6
        gain = self.device.all_reduce_gain if group.inside else 1.0
        bytes_s = link.gbytes_s * 1e9 * self._efficiency(group) * gain
        ring = 2 * calls * self._round_s(group) + 2 * num_bytes * (p - 1) / p / bytes_s
        tree = 2 * math.ceil(math.log2(p)) * step_s + 2 * num_bytes / bytes_s
        return min(ring, tree)

    def all_gather_s(self, group: Group, num_bytes: float, calls: float = 1) -> float:
        """Seconds of all-gathering (or reduce-scattering) `num_bytes`, all ranks' together, in so many calls."""
        p = group.size
        if p == 1 or num_bytes <= 0:
            return 0.0
        if curve := self._curve("all_gather", group):
            return calls * seconds_at(curve, num_bytes / calls)
        bytes_s = self.binding(group).gbytes_s * 1e9 * self._efficiency(group)
        return calls * self._round_s(group) + num_bytes * (p - 1) / p / bytes_s

    def _round_s(self, group: Group) -> float:
        """The latencies that a piece meets on its way round the ring, which leaves each island once."""
        p, inside, outside = group.size, self.links.island.latency_us, self.links.fabric.latency_us
        leaves = 0 if group.inside else math.ceil(p / group.per_island)
        return (p - 1) * (self.device.ring_step_us + (leaves * outside + (p - leaves) * inside) / p) * 1e-6

    def _efficiency(self, group: Group) -> float:
        return self.device.ring_efficiency if group.inside else self.device.fabric_efficiency

    def _curve(self, op: str, group: Group) -> Points | None:
        """What was measured of such groups."""
        return self.device.curves.collectives.get((op, group.size, min(group.size, group.per_island)))

    def p2p_s(self, num_bytes: float, inside: bool) -> float:
        """Seconds from a send to its arrival, within an island or across the fabric."""
        if curve := self.device.curves.messages.get(inside):
            return seconds_at(curve, num_bytes)
        link = self.links.island if inside else self.links.fabric
        return link.latency_us * 1e-6 + num_bytes / (link.gbytes_s * 1e9)
