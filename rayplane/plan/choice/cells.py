"""Groups of devices that belong together, the tp x cp ranks of one stage of one replica, cut out of the nodes they lie on.

nodes of one island, 6 + 6 devices, groups of 4      4 of the first, 4 of the second, then 2 + 2
                                                     └─ inside nodes ─┘      └─ inside the island
                                                        last, where islands cannot hold all: of several kinds, then across islands
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rayplane.spec.cluster import REACHES, Node, Reach

Device = tuple[int, int]
"""(position of its node, index on the node): topology order."""


def cells(nodes: Sequence[tuple[int, Node]], size: int, count: int, reach: Reach = "anywhere") -> list[list[Device]]:
    """`count` groups of `size` devices, in topology order, of nodes with their positions; fewer when devices run out.

    Each is as near together as can be; groups of several kinds, and then groups across islands and racks, are made only of what is
    left over, and only as far as the reach allows.
    """
    found: list[list[Device]] = []
    left: list[Device] = []
    for alike in _by(nodes, lambda n: (n.island, n.kind, n.memory_bytes)):
        groups, rest = _inside(alike, size)
        found += groups
        left += rest
    islands = {position: node.island for position, node in nodes}
    racks = {position: node.rack or node.name for position, node in nodes}
    for where in (islands, racks, dict.fromkeys(islands, ""))[: REACHES.index(reach) + 1]:
        if (lacking := count - len(found)) <= 0:
            break
        more, left = _joined(left, where, size)
        found += more[:lacking]
    found.sort()
    return found[:count]


def _inside(nodes: Iterable[tuple[int, Node]], size: int) -> tuple[list[list[Device]], list[Device]]:
    """Groups within like nodes of an island, first inside nodes; and the devices left over."""
    groups: list[list[Device]] = []
    left: list[Device] = []
    for position, node in nodes:
        whole = node.devices // size * size
        groups += _chunks([(position, d) for d in range(whole)], size)
        left += [(position, d) for d in range(whole, node.devices)]
    whole = len(left) // size * size
    return groups + _chunks(left[:whole], size), left[whole:]


def _joined(devices: list[Device], where: Mapping[int, str], size: int) -> tuple[list[list[Device]], list[Device]]:
    """Groups of devices that are left over, each on one place; and those still left."""
    places: dict[str, list[Device]] = {}
    for device in sorted(devices):
        places.setdefault(where[device[0]], []).append(device)
    chunks = [chunk for of in places.values() for chunk in _chunks(of, size)]
    return [c for c in chunks if len(c) == size], [d for c in chunks if len(c) < size for d in c]


def _by(nodes: Iterable[tuple[int, Node]], key: Callable[[Node], object]) -> Iterable[list[tuple[int, Node]]]:
    out: dict[object, list[tuple[int, Node]]] = {}
    for position, node in nodes:
        out.setdefault(key(node), []).append((position, node))
    return out.values()


def _chunks(devices: list[Device], size: int) -> list[list[Device]]:
    return [devices[i : i + size] for i in range(0, len(devices), size)]
