"""Where one more replica can be beside those that are there, however these are cut.

devices 0 1 2 3, of them 1 2 3 free      1 device: on 1      tp2: on 2 3, where a plan of tp2 alone puts its second      pp4: nowhere
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rayplane.errors import PlacementError
from rayplane.plan.choice.place import place
from rayplane.plan.machine.cores import Machines
from rayplane.plan.serving.serve_capacity import Capacity
from rayplane.spec.cluster import ClusterSpec, Node
from rayplane.spec.plan import Placement, Slot

Seat = tuple[Placement, tuple[int, ...]]
"""A replica's stages, with ranks from 0 on, and its devices: a rank's one after the other, numbered through all nodes."""


@dataclass(frozen=True, slots=True)
class Places:
    """Of replicas that are cut in one way."""

    capacity: Capacity
    cluster: ClusterSpec
    planned: tuple[Seat, ...]
    """Where a plan puts as many as there may be."""

    def on(self, free: frozenset[int]) -> Seat | None:
        """A place on free devices: one of the planned if possible; otherwise one that breaks up no island that the plan does not."""
        return next((seat for seat in self.planned if free.issuperset(seat[1])), None) or self._elsewhere(free)

    def _elsewhere(self, free: frozenset[int]) -> Seat | None:
        entry = self.capacity.entry
        nodes = _left(entry.on, self.cluster, free)
        cut, cell = entry.replica.cut, entry.replica.cut.tp * entry.replica.cut.cp
        if sum(node.devices for node in nodes) < cut.size:
            return None
        left = Machines.of(replace(entry.on.cluster, nodes=nodes), entry.on.device, entry.on.cores)
        inside = left.islands.groups(cell) >= cut.pp
        if not inside and (cell <= entry.on.islands.largest or not replace(entry, on=left).room_for):
            return None
        try:
            placement = place(self.capacity.layout, left.cluster)
        except PlacementError:
            return None
        (seat,) = _seats(placements_of(placement), self.cluster, entry.on.cores, free)
        return seat


def places_of(capacity: Capacity, cluster: ClusterSpec) -> Places:
    """On the cluster that the capacity is for, with its devices as they are."""
    every = frozenset(range(cluster.num_devices))
    planned = placements_of(capacity.placement())
    return Places(capacity, cluster, tuple(_seats(planned, cluster, capacity.entry.on.cores, every)))


def placements_of(placement: Placement) -> tuple[Placement, ...]:
    """A plan's replicas, each with ranks from 0 on."""
    by_replica: defaultdict[int, list[Slot]] = defaultdict(list)
    for slot in placement.slots:
        by_replica[slot.replica].append(slot)
    return tuple(_alone(tuple(slots)) for _, slots in sorted(by_replica.items()))


def _alone(slots: tuple[Slot, ...]) -> Placement:
    first = min(rank for slot in slots for rank in slot.ranks)
    return Placement(tuple(replace(s, replica=0, ranks=tuple(rank - first for rank in s.ranks)) for s in slots))


def _seats(placements: Iterable[Placement], cluster: ClusterSpec, cores: int, free: frozenset[int]) -> Iterable[Seat]:
    """Each placement takes the first devices of its nodes that are left."""
    left = {name: sorted(free.intersection(devices)) for name, devices in _numbered(cluster).items()}
    for placement in placements:
        devices: list[int] = []
        for slot in sorted(placement.slots, key=lambda s: s.ranks):
            size = len(slot.ranks) * cores
            devices += left[slot.node][:size]
            del left[slot.node][:size]
        yield placement, tuple(devices)


def _left(on: Machines, cluster: ClusterSpec, free: frozenset[int]) -> tuple[Node, ...]:
    """The nodes as they are with the free devices only."""
    numbered = _numbered(cluster)
    nodes = [replace(node, devices=len(free.intersection(numbered[node.name])) // on.cores) for node in on.cluster.nodes]
    return tuple(node for node in nodes if node.devices)


def _numbered(cluster: ClusterSpec) -> dict[str, range]:
    """Numbers of each node's devices."""
    out: dict[str, range] = {}
    first = 0
    for node in cluster.nodes:
        out[node.name] = range(first, first + node.devices)
        first += node.devices
    return out
