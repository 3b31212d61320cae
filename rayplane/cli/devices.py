"""The devices of a running job as they are now, with what has been learned of them since it began.

the fleet's cluster now ─▶ the profile with which the job began ─▶ memory that ranks turned out to take ─▶ without silent nodes
                                                                                                      good ─▶ without slow ones
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rayplane.control.state import Arrangement
from rayplane.errors import PlacementError
from rayplane.plan.choice.lacking import lacking
from rayplane.plan.machine.catalog import slowest
from rayplane.plan.measured.shortfall import with_fixed_bytes
from rayplane.spec.cluster import ClusterSpec

SILENT_S = 60.0
"""A node that does not answer, or is about to go, is not counted on for so long, whatever the cluster says."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What a fleet can say at any time."""

    cluster: Callable[[], ClusterSpec]
    """All devices that are there, whoever uses them."""
    free: Callable[[], int] = lambda: 0
    """Devices that nobody uses, of which a rank could get one."""
    answering: Callable[[frozenset[str]], frozenset[str]] = frozenset
    """Which of these nodes can be reached."""


class Devices:
    """For one job; the controller's thread and the planner's ask it."""

    def __init__(self, began: ClusterSpec, supply: Supply, precision: str):
        self._began, self._supply, self._precision = began, supply, precision
        self._fixed_bytes = 0
        self._slow: frozenset[str] = frozenset()
        self._silent_until_s: dict[str, float] = {}

    def now(self) -> ClusterSpec:
        """All that are there, those of slow nodes last: places are taken from the first on."""
        try:
            found = self._supply.cluster()
        except PlacementError:
            return replace(self._began, nodes=())
        now_s = time.monotonic()
        there = [node for node in found.nodes if self._silent_until_s.get(node.name, 0.0) <= now_s]
        found = replace(found, nodes=tuple(sorted(there, key=lambda node: node.name in self._slow)))
        if found.nodes and slowest(found) == slowest(self._began):
            found = replace(found, links=self._began.links, profile=self._began.profile)
        return with_fixed_bytes(found, self._fixed_bytes, self._precision) if self._fixed_bytes and found.nodes else found

    def good(self) -> ClusterSpec:
        """Those on which no rank was slow."""
        found = self.now()
        return replace(found, nodes=tuple(node for node in found.nodes if node.name not in self._slow))

    def slow(self, nodes: frozenset[str]) -> None:
        """A rank was slower than its peers on each of these."""
        self._slow |= nodes

    def lost(self, nodes: frozenset[str], gone: bool) -> None:
        """Ranks were lost on these; they are gone, or those of them are that do not answer."""
        nodes = nodes if gone else nodes - self._supply.answering(nodes)
        self._silent_until_s = {**self._silent_until_s, **dict.fromkeys(nodes, time.monotonic() + SILENT_S)}

    def take(self, fixed_bytes: int) -> None:
        """A rank takes so much memory besides its model."""
        self._fixed_bytes = max(self._fixed_bytes, fixed_bytes)

    def spare(self, arrangement: Arrangement, rank: int) -> bool:
        """Whether the arrangement has room, now, without slow nodes and that of a rank."""
        nodes = nodes_of(arrangement, (rank,))
        good, needed = self.good(), sum(len(s.ranks) for s in arrangement.placement.slots if s.node in nodes)
        left = replace(good, nodes=tuple(node for node in good.nodes if node.name not in nodes))
        return bool(left.nodes) and not lacking(arrangement.layout, left) and self._supply.free() >= needed


def nodes_of(arrangement: Arrangement, ranks: tuple[int, ...]) -> frozenset[str]:
    """Where some ranks are."""
    return frozenset(slot.node for slot in arrangement.placement.slots if set(slot.ranks) & set(ranks))
