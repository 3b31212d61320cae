"""A schedule ready for pricing: its Actions in one order that respects every dependency, so that a step costs one pass over it.

The rule that `timeline.play` follows, without making a single span (a test holds the two equal):

    start of an Action = max(end of the one before it on its stage, transfer + max(end of its source, end of the one before that))

since a receive is posted one compute Action early. Of many microbatches the middle is all alike: only some are played, LONG per stage
and what is over, and the others are added at the pace of that middle, as many at a time as there are stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayplane.plan.held import Held, fullest
from rayplane.plan.pipe import Pipe
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout
from rayplane.spec.passes import add_step
from rayplane.spec.schedule import Op, Schedule

LONG = 4
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
    waiting = _entries(schedule, whole, {price: index for index, price in enumerate(prices)})
    entries: list[Entry] = []
    index_of: dict[int, int] = {}
    position, moved = [0] * len(whole.ranks), True
    while moved:
        moved = False
        for stage, own in enumerate(waiting):
            at, count = position[stage], len(own)
            while at < count:
                price, microbatch, source, hop, result = own[at]
                if source >= 0 and source not in index_of:
                    break
                if result >= 0:
                    index_of[result] = len(entries)
                entries.append((stage, price, microbatch, index_of[source] if source >= 0 else -1, hop))
                at += 1
            moved |= at > position[stage]
            position[stage] = at
    p, m = len(whole.ranks), schedule.num_microbatches
    pace = (index_of[_result(m, False, 0, m - 3 * p)], index_of[_result(m, False, 0, m - 2 * p)]) if m >= LONG * p else (0, 0)
    return Order(p, m, prices, tuple(entries), pace, fullest(schedule))


def _entries(schedule: Schedule, whole: Schedule, price_of: Mapping[tuple[Op, int], int]) -> list[list[tuple[int, int, int, int, int]]]:
    """Per stage, of each Action but the step: (price, microbatch or -1, result that it needs or -1, boundary, its own result or -1)."""
    m, last = schedule.num_microbatches, schedule.num_chunks - 1
    stage_of = [schedule.stage_of(c) for c in range(last + 1)]
    out = []
    for stage, actions in enumerate(whole.ranks):
        own = []
        for action in actions:
            op, chunk, microbatch = action.op, action.chunk, action.microbatch
            price = price_of.get((op, chunk), -1)
            if op is Op.FORWARD:
                needs = chunk > 0 and stage_of[chunk - 1] != stage
                source = _result(m, True, chunk - 1, microbatch) if needs else -1
                own.append((price, microbatch, source, chunk - 1, _result(m, True, chunk, microbatch)))
            elif op is Op.BACKWARD or op is Op.INPUT_GRAD:
                needs = chunk < last and stage_of[chunk + 1] != stage
                source = _result(m, False, chunk + 1, microbatch) if needs else -1
                own.append((price, microbatch, source, chunk, _result(m, False, chunk, microbatch)))
            elif op is not Op.STEP:
                own.append((price, microbatch if op is Op.WEIGHT_GRAD else -1, -1, -1, -1))
        out.append(own)
    return out


def _result(num_microbatches: int, forward: bool, chunk: int, microbatch: int) -> int:
    """A number for the result of an Action that others may wait for."""
    return (2 * chunk + forward) * num_microbatches + microbatch
