"""Where each stage actor lives: tp groups inside a node and island where possible, pp and dp across, ranks in topology order.

    2 islands of 4 devices, dp2 pp2 tp2            replica 0: stage 0 = ranks 0 1, stage 1 = ranks 2 3 on island a
                                                    replica 1: ranks 4-7 on island b

A group that spans nodes has one slot per node, its parts. Groups are cut inside nodes first, then from what is left of each
island, then, only where the islands cannot hold them all, from what is left of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from rayplane.errors import PlacementError
from rayplane.spec.cluster import ClusterSpec, Node
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

Device = tuple[int, int]
"""(position of its node in the cluster, index on the node): topology order."""


def place(layout: Layout, cluster: ClusterSpec) -> Placement:
    """A slot for every stage of every replica. Raises PlacementError with the number of devices that are missing."""
    if (missing := layout.size - cluster.num_devices) > 0:
        raise PlacementError(
            f"{layout} needs {layout.size} devices, the cluster has {cluster.num_devices}: {missing} missing; "
            f"add devices or lower a degree"
        )
    cells = _cells(cluster, layout.cp * layout.tp, layout.dp * layout.pp)
    nodes = cluster.nodes
    return Placement(tuple(slot for index, cell in enumerate(cells) for slot in _slots(layout, index, cell, nodes)))


def _cells(cluster: ClusterSpec, size: int, count: int) -> list[list[Device]]:
    """`count` groups of `size` devices, each as near together as can be, in topology order."""
    cells: list[list[Device]] = []
    spare: list[Device] = []
    for island in _islands(cluster):
        left: list[Device] = []
        for node, devices in island:
            whole = devices // size * size
            cells += _chunks([(node, d) for d in range(whole)], size)
            left += [(node, d) for d in range(whole, devices)]
        whole = len(left) // size * size
        cells += _chunks(left[:whole], size)
        spare += left[whole:]
    cells.sort()
    if len(cells) < count:
        cells += _chunks(sorted(spare)[: (count - len(cells)) * size], size)
        cells.sort()
    return cells[:count]


def _islands(cluster: ClusterSpec) -> Iterable[list[tuple[int, int]]]:
    """(position, devices) of the nodes of each island."""
    islands: dict[str, list[tuple[int, int]]] = {}
    for position, node in enumerate(cluster.nodes):
        islands.setdefault(node.island, []).append((position, node.devices))
    return islands.values()


def _chunks(devices: list[Device], size: int) -> list[list[Device]]:
    return [devices[i : i + size] for i in range(0, len(devices), size)]


def _slots(layout: Layout, index: int, cell: list[Device], nodes: tuple[Node, ...]) -> Iterator[Slot]:
    """The slots of one stage of one replica: one per node that its group touches."""
    replica, stage = divmod(index, layout.pp)
    first = index * len(cell)
    members = groupby(range(len(cell)), key=lambda i: cell[i][0])
    for part, (node, indices) in enumerate(members):
        ranks = tuple(first + i for i in indices)
        yield Slot(replica, stage, part, ranks, nodes[node].name, nodes[node].island)
