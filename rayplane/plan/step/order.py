"""When the stages of a pipe are through, from the programs of its schedule: each Action of each stage is looked at once.

The rule that `timeline.play` follows, without making a single span (a test holds the two equal):

    start of an Action = max(end of the one before it on its stage, transfer + max(end of its source, end of the one before that))

since a receive is posted one compute Action early. What a stage sends it sends in the order in which it is awaited, so a queue between
each two chunks is all that is remembered. Of many microbatches the middle repeats itself: once all that the future depends on recurs,
moved in time, what the programs repeat from there on is skipped (`repeats`), which is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rayplane.plan.machine.recent import Recent
from rayplane.plan.step.held import Moments, moments
from rayplane.plan.step.pipe import Pipe, chunks_of_stages
from rayplane.plan.step.programs import CHUNK, KINDS, PROGRAMS, Shape
from rayplane.spec.layout import Layout
from rayplane.spec.schedule import Op

LONG = 4
"""Microbatches per stage beyond which no stage holds more than it did before."""
REMEMBERED = 3
"""Orders whose fullest moments are kept at a time: layouts of the same stages and like microbatches come one behind another."""
MARKS = 12
"""So many earlier moments a moment is compared with: what repeats itself may take several rounds to do so."""

Times = deque[float]
"""When something was done that another stage waits for, or has been recorded for."""


@dataclass(frozen=True, slots=True)
class Order:
    """A schedule."""

    schedule: str
    shape: Shape

    @property
    def held(self) -> tuple[Moments, ...]:
        """Per stage, its fullest moments."""
        return tuple(moments(self.program(stage), self.shape.vpp) for stage in range(self.shape.stages))

    def program(self, stage: int) -> bytes:
        """The compute Actions of a stage."""
        return PROGRAMS[self.schedule](self.shape, stage)

    def ends(self, pipe: Pipe, part: Sequence[float]) -> list[float]:
        """When each stage is through with its compute; `part` as in `lower_bound_s`."""
        links = _Links(pipe)
        chunks = chunks_of_stages(Layout(schedule=self.schedule, pp=self.shape.stages, vpp=self.shape.vpp))
        stages = [_Stage.of(self.program(s), own, self.shape.microbatches, links, part[-1]) for s, own in enumerate(chunks)]
        _play(stages, links)
        return [stage.end for stage in stages]


class Orders:
    """The orders of layouts, with the fullest moments of the last ones asked for."""

    def __init__(self) -> None:
        self._held = Recent[tuple[Moments, ...]](REMEMBERED)
        self._ends = Recent[list[float]](1)

    def short(self, layout: Layout, num_microbatches: int) -> Order:
        """The order of a layout's Actions; of many microbatches one of fewer, in which stages hold as much."""
        stages, long = layout.pp, LONG * layout.pp
        few = num_microbatches if num_microbatches < long + stages else long + num_microbatches % stages
        return Order(layout.schedule, Shape(stages, few, layout.vpp))

    def ends(self, layout: Layout, pipe: Pipe, part: Sequence[float]) -> list[float]:
        """When each stage is through with its compute and its reductions; a pipe is not played twice for other reductions."""
        order = Order(layout.schedule, Shape(layout.pp, len(part), layout.vpp))
        computed = self._ends.get((order, part[-1], pipe.work), lambda: order.ends(pipe, part))
        return [end + reduce_s for end, reduce_s in zip(computed, pipe.by_stage(pipe.reduce_s), strict=True)]

    def held(self, layout: Layout, num_microbatches: int) -> tuple[Moments, ...]:
        """Per stage, its fullest moments."""
        order = self.short(layout, num_microbatches)
        return self._held.get(order, lambda: order.held)


class _Links:
    """What passes between chunks: results of forwards by the chunk that takes them, gradients likewise, and the pace of the first."""

    def __init__(self, pipe: Pipe):
        last = len(pipe.stage_of) - 1
        self.pipe = pipe
        self.forward: list[Times | None] = [None] * (last + 2)
        self.gradient: list[Times | None] = [None] * (last + 2)
        self.paced: list[float] = []
        for chunk in range(1, last + 1):
            if pipe.stage_of[chunk - 1] != pipe.stage_of[chunk]:
                self.forward[chunk], self.gradient[chunk - 1] = deque(), deque()

    @property
    def waiting(self) -> list[Times]:
        """What was sent and not taken yet."""
        return [queue for queue in (*self.forward, *self.gradient) if queue is not None]


@dataclass(slots=True)
class _Stage:
    """A stage as it goes through its program; the tables are by the program's bytes, of the last microbatch in the second half."""

    program: Sequence[int]
    seconds: list[float]
    waits: list[Times | None]
    hop_s: list[float]
    sends: list[Times | list[float] | None]
    at: int = 0
    end: float = 0.0
    before: float = 0.0

    @classmethod
    def of(cls, program: bytes, chunks: Sequence[int], microbatches: int, links: _Links, last: float) -> _Stage:
        """With what its Actions cost and wait for; `last` is the size of the last microbatch."""
        pipe, codes = links.pipe, CHUNK * len(chunks)
        seconds, hop_s = [0.0] * codes, [0.0] * codes
        waits: list[Times | None] = [None] * codes
        sends: list[Times | list[float] | None] = [None] * codes
        hops = (0.0, *pipe.p2p_s, 0.0)
        for i, chunk in enumerate(chunks):
            for kind, op in enumerate(KINDS):
                code = CHUNK * i + kind
                seconds[code] = pipe.seconds(op, chunk)
                if op is Op.FORWARD:
                    waits[code], hop_s[code], sends[code] = links.forward[chunk], hops[chunk], links.forward[chunk + 1]
                elif op is not Op.WEIGHT_GRAD:
                    waits[code], hop_s[code] = links.gradient[chunk], hops[chunk + 1]
                    sends[code] = links.gradient[chunk - 1] if chunk else links.paced
        whole: Sequence[int] = program
        if last != 1.0:
            whole = list(program)
            for code in set(program):
                whole[program.rindex(code)] += codes
        return cls(
            program=whole,
            seconds=seconds + [last * s for s in seconds],
            waits=waits * 2,
            hop_s=hop_s + [last * s for s in hop_s],
            sends=sends * 2,
        )

    def advance(self) -> bool:
        """Go on until something is missing; whether anything was done."""
        program, seconds, waits, hop_s, sends = self.program, self.seconds, self.waits, self.hop_s, self.sends
        at, now, before = self.at, self.end, self.before
        for code in program[at:]:
            queue, start = waits[code], now
            if queue is not None:
                if not queue:
                    break
                sent = queue.popleft()
                arrival = (sent if sent > before else before) + hop_s[code]
                if arrival > now:
                    start = arrival
            before, now = now, start + seconds[code]
            if (taker := sends[code]) is not None:
                taker.append(now)
            at += 1
        moved, self.at, self.end, self.before = at > self.at, at, now, before
        return moved


def _play(stages: Sequence[_Stage], links: _Links) -> None:
    """All of them to their end: down the pipe with results and up it with gradients, by turns."""
    marks, due, moved = deque[_Mark](maxlen=MARKS), len(stages), True
    while moved:
        moved = False
        for stage in stages:
            moved |= stage.advance()
        for stage in reversed(stages):
            moved |= stage.advance()
        if len(links.paced) >= due:
            due += len(stages)
            now = _Mark.of(stages, links)
            if any(_skip(stages, links, before, now) for before in reversed(marks)):
                marks.clear()
            else:
                marks.append(now)


@dataclass(frozen=True, slots=True)
class _Mark:
    """All that the future depends on."""

    at: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, stages: Sequence[_Stage], links: _Links) -> _Mark:
        """As it is now."""
        queues = links.waiting
        seconds = [s for stage in stages for s in (stage.end, stage.before)]
        return cls(tuple(s.at for s in stages), tuple(map(len, queues)), tuple(chain(seconds, *queues)))


def _skip(stages: Sequence[_Stage], links: _Links, before: _Mark, now: _Mark) -> bool:
    """Leave out what repeats what was done since a mark; whether anything does.

    Times depend on those before them through maxima and sums only, so they all move by as much again each time.
    """
    seconds = now.seconds[0] - before.seconds[0]
    if before.waiting != now.waiting or any(abs(b - a - seconds) > 1e-12 * b for a, b in zip(before.seconds, now.seconds, strict=True)):
        return False
    times = min(repeats(s.program, at, s.at) for s, at in zip(stages, before.at, strict=True))
    for stage, at in zip(stages, before.at, strict=True):
        stage.at += times * (stage.at - at)
        stage.end += times * seconds
        stage.before += times * seconds
    for queue in links.waiting:
        for i, sent in enumerate(queue):
            queue[i] = sent + times * seconds
    return times > 0


def repeats(program: Sequence[int], start: int, end: int) -> int:
    """How many times the part of a program from start to end follows once more behind it.

    FBFBFBB, 0 to 2: twice
    """
    size, part = end - start, program[start:end]
    at = end
    while size and program[at : at + size] == part:
        at += size
    return (at - end) // size if size else 0
