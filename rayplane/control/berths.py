"""The places that a cluster has for a service's replicas: one each, taken, given back, and tried in turn after failures.

4 devices, replicas of tp2      berth 0: devices 0 1      berth 1: devices 2 3
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from rayplane.spec.plan import Placement, Slot


class Berths:
    """Numbers from 0 on; who takes one gives it back."""

    def __init__(self, placements: tuple[Placement, ...]):
        self.placements = placements
        self._free = list(range(len(placements)))

    def take(self) -> int | None:
        """The free one that has waited longest, or None."""
        return self._free.pop(0) if self._free else None

    def give(self, berth: int, good: bool) -> None:
        """It is free again; `good` ones come first."""
        self._free.insert(0, berth) if good else self._free.append(berth)


def berths_of(placement: Placement) -> Berths:
    """A plan's replicas as berths, each with ranks from 0 on."""
    by_replica: defaultdict[int, list[Slot]] = defaultdict(list)
    for slot in placement.slots:
        by_replica[slot.replica].append(slot)
    return Berths(tuple(_alone(tuple(slots)) for _, slots in sorted(by_replica.items())))


def _alone(slots: tuple[Slot, ...]) -> Placement:
    first = min(rank for slot in slots for rank in slot.ranks)
    return Placement(tuple(replace(s, replica=0, ranks=tuple(rank - first for rank in s.ranks)) for s in slots))
