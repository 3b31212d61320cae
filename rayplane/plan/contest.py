"""The competition among the layouts of one dp x pp x cp x tp, most promising first.

    climb   micro_batch 1, 2, 4, …      of each as little recomputation and zero as fits: beside one that fits nothing leaner is tried
    best    the first layout that is played, and still ahead of every bound

Where whole chunks have to be computed again, as few layers of them are as memory asks for.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rayplane.plan.candidates import RECOMPUTE, Ladder
from rayplane.plan.draft import Draft, Outline
from rayplane.plan.memory import TIGHT
from rayplane.plan.train import Pricer
from rayplane.spec.layout import Layout

Less = Callable[[Layout], Sequence[Layout]]
"""The same layout with less memory, in each way there is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A layout in the competition, with its step and its memory, or, until it is played, with lower bounds of both."""

    outline: Outline
    draft: Draft | None
    """Made only of what may still win."""
    tight: bool
    seconds: float
    played: bool
    key: tuple[bool, float, int, tuple[int, ...]]

    def __lt__(self, other: Entry) -> bool:
        return self.key < other.key


def key_of(entry: Entry) -> tuple[bool, float, int, tuple[int, ...]]:
    """What entries are ordered by."""
    return entry.key


@dataclass(slots=True)
class Contest:
    """Those in the competition, those that fit for certain, and those that do not."""

    pricer: Pricer
    less: Less
    queue: list[Entry] = field(default_factory=list)
    fitting: list[Outline] = field(default_factory=list)
    large: list[Outline] = field(default_factory=list)
    _seen: set[Layout] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    """Recomputation that ladders began with, which is then meant for all layers."""

    def climb(self, ladder: Ladder) -> None:
        """Queue layouts as far as they fit, each with no less recomputation and zero than the one before needed."""
        self._asked.add(ladder[0].recompute)
        needed = [ladder[0]]
        for layout in ladder:
            needed = self._offer([replace(n, micro_batch=layout.micro_batch) for n in needed])
            if not needed:
                return

    def best(self, limit_s: float) -> Entry | None:
        """The best layout, taken from the queue; those left in it are worse. None when none fits, or beats the limit for certain."""
        while self.queue and self.queue[0].seconds <= limit_s:
            entry = heapq.heappop(self.queue)
            if entry.played:
                return entry
            if entry.draft is None:
                draft = self.pricer.draft(entry.outline)
                self._queue(entry.outline, draft, draft.bound_s)
                continue
            outline = self.pricer.counted(entry.outline)
            if outline.memory_bytes > self.pricer.device_bytes:
                self.large.append(outline)
                self._offer([replace(x, boundaries=()) for x in self.less(outline.layout)])
                continue
            if not entry.outline.exact:
                self.fitting.append(outline)
                if fewer := self._fewest(outline):
                    self._queue(fewer, None, self.pricer.at_least_s(fewer))
                    continue
            self._queue(outline, entry.draft, entry.draft.step_s(self.pricer.orders), played=True)
        return None

    def _offer(self, layouts: Sequence[Layout]) -> list[Layout]:
        """Queue layouts by their bounds, or instead of those too large the same with less memory; returns what fits."""
        left, fit = deque(layouts), list[Layout]()
        while left:
            layout = left.popleft()
            if layout in self._seen or any(_no_leaner(x, layout) for x in fit):
                continue
            self._seen.add(layout)
            outline = self.pricer.outline(layout)
            if outline.memory_bytes > self.pricer.device_bytes:
                self.large.append(outline)
                left += self.less(layout)
                continue
            fit.append(layout)
            if outline.exact:
                self.fitting.append(outline)
                outline = self._fewest(outline) or outline
            self._queue(outline, None, self.pricer.at_least_s(outline))
        return fit

    def _queue(self, outline: Outline, draft: Draft | None, seconds: float, played: bool = False) -> None:
        heapq.heappush(self.queue, _entry(self.pricer, outline, draft, seconds, played))

    def _fewest(self, outline: Outline) -> Outline | None:
        """The same with fewer layers computed again, as many as it takes; None when it takes all, or all are asked for."""
        layout, most = outline.layout, max(outline.layout.boundaries)
        if layout.recompute in self._asked or layout.recompute_layers:
            return None
        tight = TIGHT * self.pricer.device_bytes
        limit = tight if outline.memory_bytes <= tight else self.pricer.device_bytes
        without = self._counted(replace(layout, recompute="none", boundaries=())).memory_bytes
        saved = max(1, without - outline.memory_bytes)
        for layers in range(max(1, math.ceil(most * (without - limit) / saved)), most):
            fewer = self._counted(replace(layout, recompute_layers=layers, boundaries=()))
            if fewer.memory_bytes <= limit:
                return fewer
        return None

    def _counted(self, layout: Layout) -> Outline:
        return self.pricer.counted(self.pricer.outline(layout))


def _no_leaner(layout: Layout, other: Layout) -> bool:
    """Whether another layout of the same kind saves at least as much of everything, and so time at most as much."""
    kind = replace(other, zero=layout.zero, recompute=layout.recompute, recompute_layers=layout.recompute_layers)
    return kind == layout and layout.zero <= other.zero and RECOMPUTE.index(layout.recompute) <= RECOMPUTE.index(other.recompute)


def _entry(pricer: Pricer, outline: Outline, draft: Draft | None, seconds: float, played: bool) -> Entry:
    """The last digits of the seconds, which depend on the order of summation, do not count."""
    layout, memory_bytes = outline.layout, outline.memory_bytes
    tight = memory_bytes > TIGHT * pricer.device_bytes
    plain = int(layout.schedule != "1f1b"), layout.vpp, layout.sp, layout.zero, layout.shard
    simpler = (layout.pp, layout.tp, layout.micro_batch, *plain)
    return Entry(outline, draft, tight, seconds, played, (tight, float(f"{seconds:.9g}"), memory_bytes, simpler))
