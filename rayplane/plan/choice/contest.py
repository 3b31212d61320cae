"""The competition among the layouts of one dp x pp x cp x tp, most promising first.

    climb   micro_batch 1, 2, 4, …      of each as little recomputation and zero as fits: beside one that fits, and is not tight,
                                    nothing leaner is tried
    best    the first layout that is played, and still ahead of every bound

Where whole chunks have to be computed again, as few layers of them are as memory asks for. Of a layout that waits only its numbers are
kept: what they were found with is made again when its turn comes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rayplane.plan.choice.candidates import RECOMPUTE, Ladder
from rayplane.plan.choice.refused import Records, Why
from rayplane.plan.step.draft import Outline
from rayplane.plan.step.memory import TIGHT
from rayplane.plan.step.train import Pricer
from rayplane.spec.layout import Layout

Less = Callable[[Layout], Sequence[Layout]]
"""The same layout with less memory, in each way there is."""
KIND = ("schedule", "vpp", "sp", "micro_batch", "shard", "cp_method", "boundaries")
"""What layouts of the same degrees and kind have in common, beside what saves memory."""
Key = tuple[bool, float, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A layout in the competition, with its step and its memory, or, until it is played, with lower bounds of both."""

    layout: Layout
    exact: bool
    """Whether its memory was counted."""
    drafted: bool
    """Whether its bound has everything in it."""
    played: bool
    key: Key

    @property
    def tight(self) -> bool:
        """Above what a layout should take of its device."""
        return self.key[0]

    @property
    def seconds(self) -> float:
        """Of a step; the last digits, which depend on the order of summation, do not count."""
        return self.key[1]

    def __lt__(self, other: Entry) -> bool:
        return self.key < other.key


def key_of(entry: Entry) -> Key:
    """What entries are ordered by."""
    return entry.key


@dataclass(slots=True)
class Contest:
    """Those in the competition; what does not fit, and what fits for certain, goes to the records."""

    pricer: Pricer
    less: Less
    records: Records
    queue: list[Entry] = field(default_factory=list)
    smallest: Outline | None = None
    """Of all layouts that were looked at."""
    _seen: set[Layout] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    """Recomputation that ladders began with, which is then meant for all layers."""

    def climb(self, ladder: Ladder) -> None:
        """Queue layouts as far as they fit, each with no less recomputation and zero than the one before needed."""
        self._asked.add(ladder[0].recompute)
        needed = [ladder[0]]
        for layout in ladder:
            needed = self._offer([n.but(micro_batch=layout.micro_batch) for n in needed])
            if not needed:
                return

    def best(self, limit_s: float) -> Entry | None:
        """The best layout, taken from the queue; those left in it are worse. None when none fits, or beats the limit for certain."""
        while self.queue and self.queue[0].seconds <= limit_s:
            entry = heapq.heappop(self.queue)
            if entry.played:
                return entry
            self._look_closer(entry, limit_s)
        return None

    def _look_closer(self, entry: Entry, limit_s: float) -> None:
        """Queue what is known of an entry after the next step: all of its bound; its memory, counted; its end."""
        outline = self.pricer.outline(entry.layout)
        draft = self.pricer.draft(outline)
        if not entry.drafted:
            bounded = self._entry(outline, draft.bound_s, entry.exact, drafted=True)
            if bounded.seconds > limit_s or (self.queue and self.queue[0] < bounded):
                heapq.heappush(self.queue, bounded)
                return
        outline = self.pricer.counted(outline)
        if outline.memory_bytes > self.pricer.device_bytes:
            self._large(outline)
            self._offer([x.but(boundaries=()) for x in self.less(outline.layout)])
            return
        if not entry.exact:
            if self._entry(outline, 0.0, exact=True).tight and not entry.tight:
                self._offer([x.but(boundaries=()) for x in self.less(outline.layout)])
            self._fits(outline)
            if fewer := self._fewest(outline):
                heapq.heappush(self.queue, self._entry(fewer, self.pricer.at_least_s(fewer), exact=True))
                return
        heapq.heappush(self.queue, self._entry(outline, draft.step_s(self.pricer.orders), exact=True, drafted=True, played=True))

    def _offer(self, layouts: Sequence[Layout]) -> list[Layout]:
        """Queue layouts by their bounds, and beside tight ones, or instead of those too large, the same with less memory.

        Returns what fits.
        """
        left, fit, roomy = deque(layouts), list[Layout](), list[Layout]()
        while left:
            layout = left.popleft()
            if layout in self._seen or any(_no_leaner(x, layout) for x in roomy):
                continue
            self._seen.add(layout)
            outline = self.pricer.outline(layout)
            if outline.memory_bytes > self.pricer.device_bytes:
                self._large(outline)
                left += self.less(layout)
                continue
            fit.append(layout)
            if outline.memory_bytes > TIGHT * self.pricer.device_bytes:
                left += self.less(layout)
            else:
                roomy.append(layout)
            exact = outline.exact
            if exact:
                self._fits(outline)
                outline = self._fewest(outline) or outline
            heapq.heappush(self.queue, self._entry(outline, self.pricer.at_least_s(outline), exact))
        return fit

    def _entry(self, outline: Outline, seconds: float, exact: bool, drafted: bool = False, played: bool = False) -> Entry:
        layout, memory_bytes = outline.layout, outline.memory_bytes
        tight = memory_bytes > TIGHT * self.pricer.device_bytes
        plain = int(layout.schedule != "1f1b"), layout.vpp, layout.sp, layout.zero, layout.shard
        key = (tight, float(f"{seconds:.9g}"), memory_bytes, (layout.pp, layout.tp, layout.micro_batch, *plain))
        return Entry(layout, exact, drafted, played, key)

    def _large(self, outline: Outline) -> None:
        self.records.add(outline.layout, Why.LARGE, outline.memory_bytes)
        self._least(outline)

    def _fits(self, outline: Outline) -> None:
        self.records.fitting.add(outline.layout)
        self._least(outline)

    def _least(self, outline: Outline) -> None:
        if self.smallest is None or outline.memory_bytes < self.smallest.memory_bytes:
            self.smallest = outline

    def _fewest(self, outline: Outline) -> Outline | None:
        """The same with fewer layers computed again, as many as it takes; None when it takes all, or all are asked for."""
        layout, most = outline.layout, max(outline.layout.boundaries)
        if layout.recompute in self._asked or layout.recompute_layers:
            return None
        tight = TIGHT * self.pricer.device_bytes
        limit = tight if outline.memory_bytes <= tight else self.pricer.device_bytes
        without = self._counted(layout.but(recompute="none", boundaries=())).memory_bytes
        saved = max(1, without - outline.memory_bytes)
        for layers in range(max(1, math.ceil(most * (without - limit) / saved)), most):
            fewer = self._counted(layout.but(recompute_layers=layers, boundaries=()))
            if fewer.memory_bytes <= limit:
                return fewer
        return None

    def _counted(self, layout: Layout) -> Outline:
        return self.pricer.counted(self.pricer.outline(layout))


def _no_leaner(layout: Layout, other: Layout) -> bool:
    """Whether another layout of the same kind saves at least as much of everything, and so time at most as much."""
    if layout.zero > other.zero or RECOMPUTE.index(layout.recompute) > RECOMPUTE.index(other.recompute):
        return False
    return all(getattr(layout, name) == getattr(other, name) for name in KIND)
