"""Who brings events to a controller beside its ranks: orders of the user, a watch for slow ranks, one for better plans.

Source.take() ──▶ events ──▶ react          Replanner.again() ──▶ Planned, NothingFits
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rayplane.control.budget import Kind
from rayplane.control.event import Event
from rayplane.control.state import Arrangement, State


class Source(Protocol):
    """Asked again and again from the controller's thread; no call may block."""

    def take(self, state: State) -> Sequence[Event]:
        """What has come since, where the job stands as `state` says."""

    def urgent(self) -> bool:
        """Whether something has come for which nobody should wait for places any longer."""


class Replanner(Protocol):
    """Finds another arrangement when the devices have changed."""

    def again(self, now: Arrangement, kind: Kind, ranks: Sequence[int], give_up: Callable[[], bool]) -> Arrangement:
        """The best for the devices that are there, after a failure of that kind struck those ranks. PlacementError, GaveUp."""
