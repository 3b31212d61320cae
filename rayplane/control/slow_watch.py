"""A watch for ranks that are slower than their peers: each is named once in an attempt.

every WINDOW_STEPS steps: slow_ranks ──▶ slow for PATIENCE_S at a stretch ──▶ RankSlow, to be replaced where another device is free
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rayplane.control.event import Event, RankSlow, Started
from rayplane.control.state import Arrangement, Running, State
from rayplane.control.straggler import WINDOW_STEPS, slow_ranks
from rayplane.spec.report import StepReport

PATIENCE_S = 5.0
"""A rank that is slow for less may have had a neighbour that has left."""


class SlowWatch:
    """An observer of steps, and a source of events."""

    def __init__(self, global_batch: int, factor: float, spare: Callable[[Arrangement, int], bool]):
        """`spare`: whether there is another device for a rank of an arrangement."""
        self._global_batch, self._factor, self._spare = global_batch, factor, spare
        self._steps: list[Sequence[StepReport]] = []
        self._since_s: dict[int, float] = {}
        self._named: set[int] = set()

    def on_event(self, state: State, event: Event) -> None:
        """Other processes, on other devices perhaps."""
        if isinstance(event, Started):
            self._steps, self._since_s, self._named = [], {}, set()

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """One more step of all ranks."""
        self._steps.append(reports)

    def take(self, state: State) -> Sequence[Event]:
        """Ranks that have turned out to be slow."""
        if not isinstance(state, Running) or len(self._steps) < WINDOW_STEPS:
            return ()
        steps, self._steps = self._steps, []
        now_s, arrangement = time.monotonic(), state.progress.arrangement
        slow = slow_ranks(steps, arrangement.layout, self._global_batch, self._factor)
        self._since_s = {rank: self._since_s.get(rank, now_s) for rank in slow}
        due = [rank for rank, since_s in self._since_s.items() if now_s - since_s >= PATIENCE_S and rank not in self._named]
        self._named.update(due)
        return [RankSlow(rank, slow[rank], self._spare(arrangement, rank)) for rank in due]

    def urgent(self) -> bool:
        """It can wait."""
        return False
