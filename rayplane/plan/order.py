"""When the stages of a pipe are through, from the programs of its schedule: each Action of each stage is looked at once.

The rule that `timeline.play` follows, without making a single span (a test holds the two equal):

    start of an Action = max(end of the one before it on its stage, transfer + max(end of its source, end of the one before that))

since a receive is posted one compute Action early. What a stage sends it sends in the order in which it is awaited, so a queue between
each two chunks is all that is remembered. Of many microbatches the middle is all alike: only some are played, LONG per stage and what
is over, and the others are added at the pace of that middle, as many at a time as there are stages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.held import Moments, moments
from rayplane.plan.pipe import Pipe, chunks_of_stages
from rayplane.plan.programs import CHUNK, KINDS, PROGRAMS, Shape
from rayplane.plan.recent import Recent
from rayplane.spec.layout import Layout
from rayplane.spec.schedule import Op

LONG = 4
"""Microbatches per stage beyond which a pipe repeats itself."""
REMEMBERED = 3
"""Orders whose fullest moments are kept at a time: layouts of the same stages and like microbatches come one behind another."""

Times = deque[float]
"""When something was done that another stage waits for, or has been recorded for."""


@dataclass(frozen=True, slots=True)
class Order:
    """A schedule; it may have fewer microbatches than those it stands for."""

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
        """When each stage is through with its compute and its reductions; `part` as in `lower_bound_s`."""
        links = _Links(pipe)
        chunks = chunks_of_stages(Layout(schedule=self.schedule, pp=self.shape.stages, vpp=self.shape.vpp))
        stages = [_Stage.of(self.program(s), own, self.shape.microbatches, links, part[-1]) for s, own in enumerate(chunks)]
        _play(stages)
        rest_s = self._rest_s(pipe, links.paced, len(part))
        return [stage.end + sum(pipe.reduce_s[c] for c in own) + rest_s for stage, own in zip(stages, chunks, strict=True)]

    def _rest_s(self, pipe: Pipe, paced: Sequence[float], num_microbatches: int) -> float:
        """What the microbatches take that were not played: as the middle, a stage's worth of microbatches apart."""
        stages, played, _ = self.shape
        if num_microbatches == played:
            return 0.0
        pace_s = max(paced[played - 2 * stages] - paced[played - 3 * stages], stages * max(pipe.stage_s))
        return (num_microbatches - played) / stages * pace_s


class Orders:
    """Orders by the layouts they are for, with the fullest moments of the last ones asked for."""

    def __init__(self) -> None:
        self._held = Recent[tuple[Moments, ...]](REMEMBERED)

    def of(self, layout: Layout, num_microbatches: int) -> Order:
        """The order of a layout's Actions."""
        stages, long = layout.pp, LONG * layout.pp
        few = num_microbatches if num_microbatches < long + stages else long + num_microbatches % stages
        return Order(layout.schedule, Shape(stages, few, layout.vpp))

    def held(self, layout: Layout, num_microbatches: int) -> tuple[Moments, ...]:
        """Per stage, its fullest moments."""
        order = self.of(layout, num_microbatches)
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


def _play(stages: Sequence[_Stage]) -> None:
    """All of them to their end: down the pipe with results and up it with gradients, by turns."""
    moved = True
    while moved:
        moved = False
        for stage in stages:
            moved |= stage.advance()
        for stage in reversed(stages):
            moved |= stage.advance()
