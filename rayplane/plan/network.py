"""How long a collective or a message takes, from its bytes, the shape of its group and the link that binds.

Over p ranks a ring moves, per rank, of a tensor of N bytes

    all-gather, reduce-scatter     N (p-1)/p      in   p-1  steps
    all-reduce                    2N (p-1)/p      in 2(p-1) steps, or as a tree in 2 log2(p) steps of 2N altogether

and each step costs the latency of the slowest link. A group that leaves its islands is bound by the network cards of
its members in one island, since each device has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayplane.plan.catalog import DeviceKind
from rayplane.spec.cluster import Link, Links


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

    def all_reduce_s(self, group: Group, num_bytes: float) -> float:
        """Seconds of an all-reduce of `num_bytes`."""
        p = group.size
        if p == 1 or num_bytes <= 0:
            return 0.0
        link = self.binding(group)
        step_s = (link.latency_us + self.device.ring_step_us) * 1e-6
        gain = self.device.all_reduce_gain if group.inside else 1.0
        bytes_s = link.gbytes_s * 1e9 * self.device.ring_efficiency * gain
        ring = 2 * (p - 1) * step_s + 2 * num_bytes * (p - 1) / p / bytes_s
        tree = 2 * math.ceil(math.log2(p)) * step_s + 2 * num_bytes / bytes_s
        return min(ring, tree)

    def all_gather_s(self, group: Group, num_bytes: float) -> float:
        """Seconds of an all-gather (or reduce-scatter) whose whole tensor has `num_bytes`."""
        p = group.size
        if p == 1 or num_bytes <= 0:
            return 0.0
        link = self.binding(group)
        step_s = (link.latency_us + self.device.ring_step_us) * 1e-6
        return (p - 1) * (step_s + num_bytes / p / (link.gbytes_s * 1e9 * self.device.ring_efficiency))

    def p2p_s(self, num_bytes: float, inside: bool) -> float:
        """Seconds from a send to its arrival, within an island or across the fabric."""
        link = self.links.island if inside else self.links.fabric
        return link.latency_us * 1e-6 + num_bytes / (link.gbytes_s * 1e9)
