"""Why a cluster has no place for a job, in words: what it needs, and what the nearest to it is.

tp 8, dp 4      islands of 6 and 4      needs 4 x 8 GPU, each in one island; the largest free island has 6 (node a: 4, node b: 2)
tp 2, dp 4      islands of 6 and 1      needs 4 x 2 GPU, each in one island; there is free room for 3: 6 (node a: 6), 1 (node c: 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.choice.bind import room_in
from rayplane.spec.cluster import Node, Reach
from rayplane.spec.layout import Layout

SHOWN = 3
"""So many places, and nodes of each, are named."""
WORDS = {"island": "in one island", "rack": "in one rack", "anywhere": "anywhere"}


@dataclass(frozen=True, slots=True)
class Want:
    """What a job needs: `groups` of `size` ranks that belong together, each rank with so much of a resource."""

    groups: int
    size: int
    each: int
    resource: str
    reach: Reach

    @classmethod
    def of(cls, layout: Layout, resource: str, each: int, reach: Reach) -> Want:
        """Of a layout: its tp groups."""
        return cls(layout.size // layout.tp, layout.tp, each, resource, reach)

    def __str__(self) -> str:
        amount = f"{self.size * self.each:g} {self.resource}"
        if self.groups == 1:
            return f"{amount} {WORDS[self.reach] if self.size > 1 else 'on one node'}"
        if self.size == self.each == 1:
            return f"{self.groups} {self.resource}"
        return f"{self.groups} x {amount}, each {WORDS[self.reach] if self.size > 1 else 'on one node'}"


def shortage(want: Want, nodes: Sequence[Node], free: str = "") -> str:
    """What is there instead; `free` is "free " where the nodes' devices are those that nobody uses."""
    places = [place for place in room_in(nodes, want.reach) if place[1]]
    if not places:
        return f"no {want.resource} is {free.strip() or 'there'}"
    room = sum(devices // want.size for _, devices, _ in places)
    if not room:
        where = "cluster" if want.reach == "anywhere" else f"largest {free}{want.reach}"
        return f"the {where} has {_listed(want, places[:1])}"
    if room < want.groups:
        return f"there is {free}room for {room}: {_listed(want, places)}"
    return f"there are {_listed(want, places)}, but not of the kinds that stages were planned for"


def _listed(want: Want, places: Sequence[tuple[str, int, tuple[tuple[str, int], ...]]]) -> str:
    said = [f"{devices * want.each:g} ({_nodes(want, nodes)})" for _, devices, nodes in places[:SHOWN]]
    return ", ".join([*said, *([f"{len(places) - SHOWN} smaller ones"] if len(places) > SHOWN else [])])


def _nodes(want: Want, nodes: Sequence[tuple[str, int]]) -> str:
    said = [f"node {name}: {devices * want.each:g}" for name, devices in nodes[:SHOWN]]
    return ", ".join([*said, *([f"{len(nodes) - SHOWN} nodes more"] if len(nodes) > SHOWN else [])])
