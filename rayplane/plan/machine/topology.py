"""How the axes of a layout lie on the islands when ranks are placed in topology order.

islands of 4 devices, Layout(dp=2, pp=2, tp=2): one replica per island

island 0: [tp tp] ─pp─ [tp tp]        tp inside, pp inside,
island 1: [tp tp] ─pp─ [tp tp]        dp across: one member of each dp group per island
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from rayplane.plan.machine.network import Group
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Topology:
    """Islands by their number of devices: ((devices, how many such islands), …), largest first."""

    islands: tuple[tuple[int, int], ...]
    dp_inside_pp: bool = False
    """Whether ranks that differ in dp only are nearer than those that differ in pp only, as in others' order."""

    @property
    def largest(self) -> int:
        """Devices of the largest island."""
        return self.islands[0][0]

    def groups(self, size: int) -> int:
        """How many groups of `size` devices fit inside islands."""
        return sum(devices // size * count for devices, count in self.islands)

    def per_island(self, size: int) -> int:
        """Groups of `size` in the smallest island that holds one; 0 when none does."""
        return min((devices // size for devices, _ in self.islands if devices >= size), default=0)

    def cells_inside(self, layout: Layout) -> bool:
        """Whether every tp group (times cp) can lie inside an island."""
        return self.groups(layout.cp * layout.tp) >= layout.dp * layout.pp

    def tp_group(self, layout: Layout) -> Group:
        """Shape of the tp groups; one that has to leave its island is bound by what the others of its group leave it."""
        whole = all(devices % layout.tp == 0 for devices, _ in self.islands)
        if self.cells_inside(layout) or (whole and self.groups(layout.tp) >= layout.dp * layout.pp * layout.cp):
            return Group(layout.tp, layout.tp)
        return Group(layout.tp, self.largest if self.largest < layout.tp else 1)

    def cp_group(self, layout: Layout) -> Group:
        """Shape of the groups that cut a sequence."""
        return Group(layout.cp, layout.cp if self.cells_inside(layout) else max(1, self.largest // layout.tp))

    def dp_group(self, layout: Layout) -> Group:
        """Shape of the groups that reduce gradients, dp x cp; the busiest are bound by the fewest members in an island."""
        cells, members = self.per_island(layout.cp * layout.tp), layout.dp * layout.cp
        if layout.dp * layout.pp <= cells:
            return Group(members, members)
        if self.dp_inside_pp and cells:
            return Group(members, layout.cp * (math.gcd(layout.dp, cells) if layout.dp % cells else cells))
        return Group(members, max(1, cells // layout.pp * layout.cp, layout.cp if cells else 0))

    def shard_group(self, layout: Layout) -> Group:
        """Shape of the groups over which zero cuts: neighbours among those; one that straddles islands has fewest members in one."""
        whole = self.dp_group(layout)
        return whole if layout.shard_size == whole.size else Group(layout.shard_size, math.gcd(layout.shard_size, whole.per_island))

    def copies_group(self, layout: Layout) -> Group:
        """Shape of the groups that hold the same share."""
        whole, size = self.dp_group(layout), layout.shard_size
        return Group(whole.size // size, whole.size // size if whole.inside else max(1, whole.per_island // size))

    def world(self, layout: Layout) -> Group:
        """All ranks."""
        return Group(layout.size, min(layout.size, self.islands[-1][0]))

    def hops_inside(self, layout: Layout) -> tuple[bool, ...]:
        """For each boundary between stages, whether no replica's crosses from one island to another."""
        cells = self.per_island(layout.cp * layout.tp)
        if not cells:
            return (False,) * (layout.pp - 1)
        if self.dp_inside_pp:
            return (layout.dp * layout.pp <= cells,) * (layout.pp - 1)
        replicas = range(min(layout.dp, cells))
        return tuple(
            all((r * layout.pp + s) // cells == (r * layout.pp + s + 1) // cells for r in replicas) for s in range(layout.pp - 1)
        )


def topology(cluster: ClusterSpec, dp_inside_pp: bool = False) -> Topology:
    """The islands of a cluster; devices of another kind on an island are one of their own, for no group should mix them."""
    devices: Counter[tuple[str, str, int]] = Counter()
    for node in cluster.nodes:
        devices[node.island, node.kind, node.memory_bytes] += node.devices
    return Topology(tuple(sorted(Counter(devices.values()).items(), reverse=True)), dp_inside_pp)
