"""Where each stage actor lives: tp and cp inside a node and island where possible, pp and dp across, ranks in topology order.

    2 islands of 4 devices, dp2 pp2 tp2            replica 0: stage 0 = ranks 0 1, stage 1 = ranks 2 3 on island a
                                                    replica 1: ranks 4-7 on island b

    4 A100 on a, 8 H100 on b, dp2 pp3 tp2          stage 0 of both replicas on a, stages 1 and 2 on b     (`runs`)

A group that spans nodes has one slot per node, its parts. How groups are cut: `cells`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rayplane.errors import PlacementError
from rayplane.plan.choice.cells import Device, cells
from rayplane.plan.choice.lacking import lacking
from rayplane.plan.step.runs import Fleet, Run, fleet
from rayplane.spec.cluster import ClusterSpec, Node
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot


def place(layout: Layout, cluster: ClusterSpec) -> Placement:
    """A slot for every stage of every replica. Raises PlacementError with the devices and groups that are missing, and where."""
    if layout.size > cluster.num_devices:
        raise PlacementError(lacking(layout, cluster))
    of = fleet(cluster)
    slots = [slot for run in of.runs(layout) for slot in _run(layout, run, of, cluster.nodes)]
    return Placement(tuple(sorted(slots, key=lambda slot: (slot.replica, slot.stage, slot.part))))


def _run(layout: Layout, run: Run, of: Fleet, nodes: tuple[Node, ...]) -> Iterator[Slot]:
    """The slots of the stages of a run, replica after replica."""
    pool = of.pools[run.pool]
    everyone = pool is of.pools[-1]
    own = [(i, n) for i, n in enumerate(nodes) if everyone or (n.kind, n.memory_bytes) == (pool.kind, pool.memory_bytes)]
    for index, cell in enumerate(cells(own, layout.cp * layout.tp, layout.dp * run.stages)):
        replica, stage = divmod(index, run.stages)
        yield from slots_of(layout, replica, run.first + stage, cell, nodes)


def slots_of(layout: Layout, replica: int, stage: int, cell: list[Device], nodes: Sequence[Node]) -> Iterator[Slot]:
    """The slots of one stage of one replica: one per node that its group touches."""
    first = (replica * layout.pp + stage) * len(cell)
    members = groupby(range(len(cell)), key=lambda i: cell[i][0])
    for part, (node, indices) in enumerate(members):
        ranks = tuple(first + i for i in indices)
        yield Slot(replica, stage, part, ranks, nodes[node].name, nodes[node].island)
