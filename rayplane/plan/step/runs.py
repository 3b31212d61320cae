"""Which kind of device each stage of a layout is on: kinds lie along the pipe, each on stages of its own, all replicas alike.

8 A100 and 16 H100, dp 8 x pp 3      stage 0     8 x a100-80gb
                                     stage 1     8 x h100-sxm
                                     stage 2     8 x h100-sxm

So a stage gets the layers that its own devices are fast enough for, and have memory for. Kinds with more memory come first, where more
microbatches are in flight; of equal memory the slower ones, for the last stage has the head. Where a kind has no room for a whole stage
of all replicas, kinds lie along dp instead: since replicas get equal parts of the batch, the slowest sets the pace for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rayplane.plan.machine.catalog import device
from rayplane.plan.machine.topology import Topology, topology
from rayplane.spec.cluster import ClusterSpec, Node
from rayplane.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Run:
    """Stages in a row on one kind of device."""

    pool: int
    """Index among the pools of `Fleet`."""
    memory_bytes: int
    """Of one device."""
    first: int
    stages: int

    def alone(self, layout: Layout) -> Layout:
        """The layout as its devices see it: with these stages only."""
        if self.stages == layout.pp:
            return layout
        names = ("dp", "cp", "tp", "sp", "schedule", "micro_batch", "zero", "shard", "recompute", "cp_method")
        return Layout(pp=self.stages, **{name: getattr(layout, name) for name in names})


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes whose devices are alike, and how they lie on the islands."""

    kind: str
    memory_bytes: int
    speed: float
    nodes: tuple[Node, ...]
    topology: Topology

    @property
    def num_devices(self) -> int:
        """Devices of all its nodes."""
        return sum(node.devices for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The devices of a cluster: pools of like ones in the order in which stages lie on them, and behind them, where there are
    several, all together: as fast as the slowest, with the memory of the smallest."""

    pools: tuple[Pool, ...]
    _known: dict[tuple[int, int, int, int], tuple[Run, ...]] = field(default_factory=dict, compare=False)

    @property
    def mixed(self) -> bool:
        """Whether there is more than one kind."""
        return len(self.pools) > 1

    @property
    def memory_bytes(self) -> int:
        """Of the largest device."""
        return max(pool.memory_bytes for pool in self.pools)

    def sizes(self) -> list[int]:
        """Devices of the fastest kind, of the fastest two, and so on, but not of all: what a plan may use alone."""
        out, total = [], 0
        for pool in sorted(self.pools[:-1], key=_fastest_first)[:-1]:
            total += pool.num_devices
            out.append(total)
        return out

    def runs(self, layout: Layout) -> tuple[Run, ...]:
        """The stages by kind; one run over all devices where kinds do not lie along the pipe."""
        key = (layout.dp, layout.pp, layout.cp, layout.tp)
        if key not in self._known:
            self._known[key] = self._along_pipe(layout) or (Run(len(self.pools) - 1, self.pools[-1].memory_bytes, 0, layout.pp),)
        return self._known[key]

    def _along_pipe(self, layout: Layout) -> tuple[Run, ...]:
        """The fastest kinds that have room, in the order of the pools; nothing when they have not."""
        if not self.mixed:
            return ()
        kinds, left = self.pools[:-1], layout.pp
        taken = [0] * len(kinds)
        for index in sorted(range(len(kinds)), key=lambda i: _fastest_first(kinds[i])):
            taken[index] = min(left, kinds[index].topology.groups(layout.cp * layout.tp) // layout.dp)
            left -= taken[index]
        if left:
            return ()
        starts = [sum(taken[:i]) for i in range(len(kinds))]
        return tuple(Run(i, kinds[i].memory_bytes, starts[i], taken[i]) for i in range(len(kinds)) if taken[i])


def fleet(cluster: ClusterSpec, dp_inside_pp: bool = False) -> Fleet:
    """The devices of a cluster by kind and memory."""
    nodes: dict[tuple[int, float, str], list[Node]] = {}
    speeds = {kind: _speed(kind) for kind in {node.kind for node in cluster.nodes}}
    for node in cluster.nodes:
        nodes.setdefault((-node.memory_bytes, speeds[node.kind], node.kind), []).append(node)
    pools = []
    for (memory, speed, kind), of in sorted(nodes.items()):
        own = ClusterSpec(tuple(of), cluster.links)
        pools.append(Pool(kind, -memory, speed, own.nodes, topology(own, dp_inside_pp)))
    if len(pools) > 1:
        slow = min(pools, key=lambda p: (p.speed, p.kind))
        pools.append(Pool(slow.kind, cluster.memory_bytes, slow.speed, cluster.nodes, topology(cluster, dp_inside_pp)))
    return Fleet(tuple(pools))


def _speed(kind: str) -> float:
    known = device(kind)
    return known.peak_flops["bf16"] * known.gemm_efficiency


def _fastest_first(pool: Pool) -> tuple[float, int, str]:
    return -pool.speed, -pool.memory_bytes, pool.kind
