"""A placement made anew for the devices that are free when it is to be carried out, no farther apart than the job allows.

planned: stage 0 on a, stage 1 on b        free: a 4, b 0, c 4        bound: stage 0 on a, stage 1 on c

reach       a tp group lies            tried in this order, as far as the job allows
island      in one island              on the planned nodes, else where the fewest islands are broken into
rack        in one rack
anywhere    wherever there is room

Ranks follow the nodes as they are listed, which is topology order: rack, island, node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rayplane.plan.choice.cells import Device, cells
from rayplane.plan.choice.place import slots_of
from rayplane.spec.cluster import REACHES, Node, Reach
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot


@dataclass(frozen=True, slots=True)
class Bound:
    """Where stages go now, and how far apart the ranks of a tp group are there."""

    placement: Placement
    reach: Reach


def bind(layout: Layout, planned: Placement, free: Sequence[Node], farthest: Reach) -> Bound | None:
    """The placement for nodes with so many devices free; None where there is no room. A stage stays on its kind of device."""
    if planned.slots and _has_room(planned, free) and reach_of(layout, planned, free) == REACHES[0]:
        return Bound(planned, REACHES[0])
    kinds = _kinds(layout, planned, free)
    for reach in REACHES[: REACHES.index(farthest) + 1]:
        if placement := _cut(layout, kinds, free, reach):
            return Bound(placement, reach)
    return None


def reach_of(layout: Layout, placement: Placement, nodes: Sequence[Node]) -> Reach:
    """How far apart the ranks of the widest tp group are."""
    racks = {node.name: node.rack or node.name for node in nodes}
    islands: dict[int, set[str]] = {}
    over: dict[int, set[str]] = {}
    for slot in placement.slots:
        for group in {rank // layout.tp for rank in slot.ranks}:
            islands.setdefault(group, set()).add(slot.island)
            over.setdefault(group, set()).add(racks.get(slot.node, slot.node))
    if all(len(of) == 1 for of in islands.values()):
        return "island"
    return "rack" if all(len(of) == 1 for of in over.values()) else "anywhere"


def _has_room(placement: Placement, free: Sequence[Node]) -> bool:
    room = Counter({(node.name, node.island): node.devices for node in free})
    taken = Counter[tuple[str, str]]()
    for slot in placement.slots:
        taken[slot.node, slot.island] += len(slot.ranks)
    return taken <= room


def _kinds(layout: Layout, planned: Placement, nodes: Sequence[Node]) -> list[str]:
    """The kind of device that each stage was planned for, "" where that does not matter or is not known any more."""
    of = {node.name: node.kind for node in nodes}
    kinds = [""] * layout.pp
    if len(set(of.values())) > 1:
        for slot in planned.slots:
            kinds[slot.stage] = of.get(slot.node, kinds[slot.stage])
    return kinds


def _cut(layout: Layout, kinds: Sequence[str], free: Sequence[Node], reach: Reach) -> Placement | None:
    slots: list[Slot] = []
    for kind in dict.fromkeys(kinds):
        stages = [stage for stage in range(layout.pp) if kinds[stage] == kind]
        own = [(i, node) for i, node in enumerate(free) if node.kind == kind or not kind]
        found = _groups(layout, own, layout.dp * len(stages), reach)
        if found is None:
            return None
        for index, cell in enumerate(found):
            replica, stage = divmod(index, len(stages))
            slots += slots_of(layout, replica, stages[stage], cell, free)
    return Placement(tuple(sorted(slots, key=lambda slot: (slot.replica, slot.stage, slot.part))))


def _groups(layout: Layout, nodes: Sequence[tuple[int, Node]], count: int, reach: Reach) -> list[list[Device]] | None:
    """So many tp x cp groups in topology order: each in one place, else each of tp groups that are."""
    preferred = _preferred(nodes, count * layout.cp * layout.tp)
    position = {i: nodes[at][0] for i, at in enumerate(preferred)}
    ranked = [(i, nodes[at][1]) for i, at in enumerate(preferred)]
    for size in (layout.cp * layout.tp, layout.tp):
        wanted = count * layout.cp * layout.tp // size
        found = cells(ranked, size, wanted, reach)
        if len(found) == wanted:
            devices = _in_order(found, position)
            return [devices[i : i + layout.cp * layout.tp] for i in range(0, len(devices), layout.cp * layout.tp)]
    return None


def _in_order(found: Sequence[Sequence[Device]], position: Mapping[int, int]) -> list[Device]:
    """The devices of groups, as the nodes were listed."""
    groups = sorted(sorted((position[i], d) for i, d in cell) for cell in found)
    return [device for cell in groups for device in cell]


def _preferred(nodes: Sequence[tuple[int, Node]], need: int) -> list[int]:
    """Indices of nodes: the smallest island that holds everything first, or the largest ones, so that few are broken into."""
    sizes = Counter[str]()
    begins: dict[str, int] = {}
    for index, (_, node) in enumerate(nodes):
        sizes[node.island] += node.devices
        begins.setdefault(node.island, index)

    def rank(index: int) -> tuple[bool, int, int]:
        island = nodes[index][1].island
        enough = sizes[island] >= need
        return not enough, sizes[island] if enough else -sizes[island], begins[island]

    return sorted(range(len(nodes)), key=rank)


def room_in(nodes: Sequence[Node], reach: Reach) -> Iterator[tuple[str, int, tuple[tuple[str, int], ...]]]:
    """(name, devices, devices by node) of each place of that size, the largest first."""
    places: dict[str, list[Node]] = {}
    for node in nodes:
        name = {"island": node.island, "rack": node.rack or node.name, "anywhere": ""}[reach]
        places.setdefault(name, []).append(node)
    for name, of in sorted(places.items(), key=lambda item: -sum(node.devices for node in item[1])):
        yield name, sum(node.devices for node in of), tuple((node.name, node.devices) for node in of if node.devices)
