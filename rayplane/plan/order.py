"""A schedule ready for pricing: its Actions in one order that respects every dependency, so that a step costs one pass over it.

The rule that `timeline.play` follows, without making a single span (a test holds the two equal):

    start of an Action = max(end of the one before it on its stage, transfer + max(end of its source, end of the one before that))

since a receive is posted one compute Action early. Of many microbatches the middle is all alike: only some are played, LONG per stage
and what is over, and the others are added at the pace of that middle, as many at a time as there are stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.held import Held, fullest
from rayplane.plan.pipe import Pipe
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout
from rayplane.spec.passes import add_step
from rayplane.spec.schedule import COMPUTE, Action, Op, Schedule

LONG = 5
"""Microbatches per stage beyond which a pipe repeats itself."""

Entry = tuple[int, int, int, int, int]
"""(stage, index of its price, microbatch, entry of another stage that it waits for or -1, boundary that this one's result crosses)."""


@dataclass(frozen=True, slots=True)
class Order:
    """A compiled schedule; it may have fewer microbatches than those it stands for."""

    num_stages: int
    num_microbatches: int
    prices: tuple[tuple[Op, int], ...]
    entries: tuple[Entry, ...]
    pace: tuple[int, int]
    """Two entries of the middle, a stage's worth of microbatches apart."""
    held: tuple[tuple[Held, ...], ...]
    """Per stage, its fullest moments."""

    def ends(self, pipe: Pipe, part: Sequence[float]) -> list[float]:
        """When each stage is through with its compute and its reductions; `part` as in `lower_bound_s`."""
        part_of = [1.0] * (self.num_microbatches - 1) + [part[-1], 1.0]
        price_s, hop_s = [pipe.seconds(op, chunk) for op, chunk in self.prices], pipe.p2p_s
        end, before, done = [0.0] * self.num_stages, [0.0] * self.num_stages, [0.0] * len(self.entries)
        for index, (stage, price, microbatch, source, hop) in enumerate(self.entries):
            now, share = end[stage], part_of[microbatch]
            start = now
            if source >= 0:
                sent, posted = done[source], before[stage]
                arrival = (sent if sent > posted else posted) + hop_s[hop] * share
                start = arrival if arrival > now else now
            if microbatch >= 0:
                before[stage] = now
            end[stage] = done[index] = start + price_s[price] * share
        return [e + self._rest_s(pipe, done, len(part)) for e in end]

    def _rest_s(self, pipe: Pipe, done: Sequence[float], num_microbatches: int) -> float:
        """What the microbatches take that were not played."""
        if num_microbatches == self.num_microbatches:
            return 0.0
        first, second = self.pace
        pace_s = max(done[second] - done[first], self.num_stages * max(pipe.stage_s))
        return (num_microbatches - self.num_microbatches) / self.num_stages * pace_s


class Orders:
    """Compiled schedules, each made once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], Order] = {}

    def of(self, layout: Layout, num_microbatches: int) -> Order:
        """The order of a layout's Actions."""
        stages, long = layout.pp, LONG * layout.pp
        few = num_microbatches if num_microbatches < long + stages else long + num_microbatches % stages
        key = (layout.schedule, stages, few, layout.vpp)
        if key not in self._known:
            self._known[key] = compiled(BUILDERS[layout.schedule](stages, few, layout.vpp))
        return self._known[key]


def compiled(schedule: Schedule) -> Order:
    """Put the Actions of all stages into one order."""
    whole = add_step(schedule)
    prices = tuple(sorted({(a.op, a.chunk) for actions in whole.ranks for a in actions if a.op is not Op.STEP}))
    price_of = {price: index for index, price in enumerate(prices)}
    entries: list[Entry] = []
    index_of: dict[tuple[bool, int, int], int] = {}
    position, moved = [0] * len(whole.ranks), True
    while moved:
        moved = False
        for stage, actions in enumerate(whole.ranks):
            while (action := actions[position[stage]]).op is not Op.STEP:
                source, hop = _source(schedule, stage, action)
                if source and source not in index_of:
                    break
                if action.op in COMPUTE and action.op is not Op.WEIGHT_GRAD:
                    index_of[action.op is Op.FORWARD, action.chunk, action.microbatch] = len(entries)
                microbatch = action.microbatch if action.op in COMPUTE else -1
                entries.append((stage, price_of[action.op, action.chunk], microbatch, index_of[source] if source else -1, hop))
                position[stage] += 1
                moved = True
    p, m = len(whole.ranks), schedule.num_microbatches
    pace = (index_of[False, 0, m - 3 * p], index_of[False, 0, m - 2 * p]) if m >= LONG * p else (0, 0)
    return Order(p, m, prices, tuple(entries), pace, fullest(schedule))


def _source(schedule: Schedule, stage: int, action: Action) -> tuple[tuple[bool, int, int] | None, int]:
    """(whether forward, chunk, microbatch) of the Action on another stage that feeds this one, and the boundary between them."""
    if action.op is Op.FORWARD:
        chunk, boundary = action.chunk - 1, action.chunk - 1
    elif action.op in (Op.BACKWARD, Op.INPUT_GRAD):
        chunk, boundary = action.chunk + 1, action.chunk
    else:
        return None, -1
    if not 0 <= chunk < schedule.num_chunks or schedule.stage_of(chunk) == stage:
        return None, -1
    return (action.op is Op.FORWARD, chunk, action.microbatch), boundary
