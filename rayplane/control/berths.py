"""The devices of a service's replicas: taken, given back, and tried in turn after failures.

4 devices      replica 0: tp2 on 0 1      replica 1: 1 device on 2      free: 3      a second tp2 lacks a place while replica 1 is there
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from rayplane.control.way import Way
from rayplane.spec.plan import Placement


@dataclass(frozen=True, slots=True)
class Berth:
    """Where a replica is; its ranks count from 0 on."""

    placement: Placement
    devices: tuple[int, ...]
    """Of all that the service may have, in the order of its ranks."""


Place = Callable[[Way, frozenset[int]], Berth | None]
"""Where a replica can be on devices that are free."""


class Berths:
    """Devices by the number of the replica that has them."""

    def __init__(self, devices: int, place: Place):
        self._place = place
        self._free = frozenset(range(devices))
        self._taken: dict[int, Berth] = {}
        self._doubtful: list[frozenset[int]] = []
        """Where replicas failed, the latest last."""

    def take(self, number: int, way: Way) -> Berth | None:
        """A place for a replica, if possible not where one has failed; None where there is none."""
        for known in range(len(self._doubtful) + 1):
            free = self._free.difference(*self._doubtful[known:])
            if berth := self._place(way, free):
                self._taken[number] = berth
                self._free -= frozenset(berth.devices)
                return berth
        return None

    def give(self, number: int, good: bool) -> None:
        """A replica has left its place; `good`: not because it failed there."""
        devices = frozenset(self._taken.pop(number).devices)
        self._free |= devices
        self._doubtful = [known - devices for known in self._doubtful if known - devices]
        if not good:
            self._doubtful.append(devices)

    def lacking(self, way: Way, movable: Sequence[int]) -> tuple[int, ...]:
        """Those of the replicas, the last ones first, that would have to leave for one of that way; none where that does not help."""
        needed: list[int] = []
        for number in reversed(movable):
            needed.append(number)
            if self._fits(way, needed):
                break
        else:
            return ()
        for number in list(needed):
            if self._fits(way, fewer := [n for n in needed if n != number]):
                needed = fewer
        return tuple(sorted(needed))

    def _fits(self, way: Way, without: Sequence[int]) -> bool:
        freed = chain.from_iterable(self._taken[number].devices for number in without)
        return self._place(way, self._free.union(freed)) is not None
