"""What a cluster lacks for a layout, in words: how many devices, which groups have a place, and what would help.

dp4 tp8 needs 32 devices, the cluster has 26: 6 missing. It needs 4 groups of 8 devices in one island each, and there is room for 2;
island c has 6 (node c0: 4, node c1: 2), 2 short; island d has 4, 4 short. Add 2 to c and 4 to d, or use dp 2
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rayplane.plan.machine.topology import topology
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import AXES, Axis, Layout

REDUCED: tuple[Axis, ...] = ("dp", "pp", "tp", "cp")
"""The axes of which a smaller degree is offered, in this order."""
SHOWN = 3
"""So many islands are named, of those that lack least."""


@dataclass(frozen=True, slots=True)
class _Island:
    """Like devices of an island, as nodes have them."""

    name: str
    nodes: tuple[tuple[str, int], ...]

    @property
    def devices(self) -> int:
        return sum(devices for _, devices in self.nodes)

    def short(self, size: int) -> int:
        """Devices to one more group; of an island with whole groups only, all of them."""
        return size - self.devices % size

    def __str__(self) -> str:
        if len(self.nodes) == 1:
            return f"island {self.name} has {self.devices}"
        parts = [f"node {name}: {devices}" for name, devices in self.nodes[:SHOWN]]
        more = [f"{len(self.nodes) - SHOWN} nodes more"] if len(self.nodes) > SHOWN else []
        return f"island {self.name} has {self.devices} ({', '.join(parts + more)})"


def lacking(layout: Layout, cluster: ClusterSpec) -> str:
    """Of a layout that needs more devices than there are, or groups that no island has room for; empty when nothing is lacking."""
    have, size = cluster.num_devices, layout.cp * layout.tp
    missing = layout.size - have
    name = " ".join(f"{axis}{degree}" for axis in AXES if (degree := getattr(layout, axis)) > 1) or "1 device"
    said = [f"{name} needs {layout.size} devices, the cluster has {have}: {missing} missing"] if missing > 0 else []
    without = _without_place(layout, cluster)
    if without:
        groups = layout.dp * layout.pp
        wanted = f"{groups} groups of {size} devices in one island each" if groups > 1 else f"{size} devices in one island"
        room = f"there is room for {groups - without}" if groups > without else "no island has room"
        said.append(f"It needs {wanted}, and {room}; {_shortest(layout, cluster)}")
    if not said:
        return ""
    return ". ".join([*said, _remedy(layout, cluster, without, missing)])


def _without_place(layout: Layout, cluster: ClusterSpec) -> int:
    """Groups of more than one device for which no island has room."""
    size = layout.cp * layout.tp
    return max(0, layout.dp * layout.pp - topology(cluster).groups(size)) if size > 1 else 0


def _islands(cluster: ClusterSpec, size: int) -> list[_Island]:
    """Those that lack least for one more group first."""
    nodes: dict[tuple[str, str, int], list[tuple[str, int]]] = {}
    for node in cluster.nodes:
        nodes.setdefault((node.island, node.kind, node.memory_bytes), []).append((node.name, node.devices))
    twice = Counter(island for island, _, _ in nodes)
    islands = [_Island(f"{i} ({kind})" if twice[i] > 1 else i, tuple(own)) for (i, kind, _), own in nodes.items()]
    return sorted(islands, key=lambda i: i.short(size))


def _shortest(layout: Layout, cluster: ClusterSpec) -> str:
    """The islands that lack least for the groups that have no place."""
    size = layout.cp * layout.tp
    partial = [i for i in _islands(cluster, size) if i.devices % size]
    shown = [f"{i}, {i.short(size)} short" for i in partial[:SHOWN]]
    if len(partial) > SHOWN:
        shown.append(f"{len(partial) - SHOWN} more lack as much or more")
    return "; ".join(shown) or "the islands hold whole groups only"


def _remedy(layout: Layout, cluster: ClusterSpec, without: int, missing: int) -> str:
    """What to add, or a smaller degree that has a place."""
    size = layout.cp * layout.tp
    partial = [i for i in _islands(cluster, size) if i.devices % size][:without]
    if not without:
        ways = [f"add {missing} devices"]
    elif len(partial) > SHOWN:
        ways = [f"add {sum(i.short(size) for i in partial)} devices to {len(partial)} islands"]
    else:
        ways = [f"add {' and '.join(f'{i.short(size)} to {i.name}' for i in partial)}"] if partial else []
    if without > len(partial):
        more = without - len(partial)
        ways = [" and ".join([*ways, f"{'' if ways else 'add '}{more} island{'s' * (more > 1)} of {size} devices"])]
    if smaller := _smaller(layout, cluster):
        ways.append(f"use {smaller}")
    text = ", or ".join(ways)
    return text[0].upper() + text[1:]


def _smaller(layout: Layout, cluster: ClusterSpec) -> str:
    """The largest degree of one axis that would do."""
    degrees = (layout.dp, layout.pp, layout.cp, layout.tp)
    for axis in REDUCED:
        for degree in range(getattr(layout, axis) - 1, 0, -1):
            dp, pp, cp, tp = (degree if other == axis else own for other, own in zip(AXES, degrees, strict=True))
            tried = Layout(dp=dp, pp=pp, cp=cp, tp=tp)
            if tried.size <= cluster.num_devices and not _without_place(tried, cluster):
                return f"{axis} {degree}"
    return ""
