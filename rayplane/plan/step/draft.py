"""A layout priced but for its timeline: seconds of each chunk, memory of each stage, and the timeline when it is asked for.

Draft ──▶ bound_s      no step of this layout can be shorter; the search plays only layouts whose bound is promising
      ├─▶ step_s       by the ends of its stages
      └─▶ timeline     every Action in time, as the runtime will execute it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayplane.plan.step.compute import Seconds
from rayplane.plan.step.memory import StageMemory
from rayplane.plan.step.order import Orders
from rayplane.plan.step.pipe import Pipe, lower_bound_s
from rayplane.plan.step.recurrence import RECURRENCES
from rayplane.plan.step.runs import Run
from rayplane.plan.step.timeline import Timeline, play
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build
from rayplane.spec.schedule import COMPUTE, Action, Op

SPLIT = frozenset(name for name, builder in BUILDERS.items() if any(a.op is Op.INPUT_GRAD for a in builder(1, 1, 2).ranks[0]))
"""Schedules that run the two halves of a backward apart."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds by chunk: of a microbatch (compute, tp, cp, dp, p2p), of a step (reduction left exposed); and what ends the step."""

    stage_of: tuple[int, ...]
    compute: tuple[Seconds, ...]
    tp: tuple[Seconds, ...]
    cp: tuple[Seconds, ...]
    dp: tuple[Seconds, ...]
    p2p_s: tuple[float, ...]
    reduce_s: tuple[float, ...]
    sync_s: float
    """What the end of the step adds over dp: a tied embedding's gradient, and under zero 1 and 2 the weights."""
    optimizer_s: float
    rolling: bool = False
    """Whether a stage goes on with its next step while others end theirs (`Practice.rolling`)."""

    @property
    def pipe(self) -> Pipe:
        """What the timeline needs."""
        all_of = [c.plus(t).plus(ring).plus(d) for c, t, ring, d in zip(self.compute, self.tp, self.cp, self.dp, strict=True)]
        return Pipe(
            stage_of=self.stage_of,
            forward_s=tuple(s.forward for s in all_of),
            input_s=tuple(s.input_grad for s in all_of),
            weight_s=tuple(s.weight_grad for s in all_of),
            p2p_s=self.p2p_s,
            reduce_s=self.reduce_s,
        )


@dataclass(frozen=True, slots=True)
class Outline:
    """A layout with its boundaries set, and its memory."""

    layout: Layout
    samples: tuple[int, ...]
    """Samples of each microbatch of the busiest replica."""
    memory: tuple[StageMemory, ...]
    """Of the fullest stage of each of the runs."""
    memory_bytes: int
    """Of the fullest stage; where devices differ, as if on the largest."""
    exact: bool
    """Whether activations in flight were counted; else memory is a lower bound."""
    runs: tuple[Run, ...]
    """The stages by kind of device."""

    @property
    def part(self) -> tuple[float, ...]:
        """Size of each microbatch as a share of a full one; the last may be smaller."""
        return tuple(n / self.layout.micro_batch for n in self.samples)

    @property
    def rounds(self) -> float:
        """Work of the busiest replica in full microbatches."""
        return sum(self.samples) / self.layout.micro_batch

    @property
    def fullest(self) -> StageMemory:
        """The stage that needs most of its device."""
        return self._fullest[1]

    @property
    def room_bytes(self) -> int:
        """Of that device."""
        return self._fullest[0].memory_bytes

    @property
    def _fullest(self) -> tuple[Run, StageMemory]:
        return max(zip(self.runs, self.memory, strict=True), key=lambda pair: pair[1].total / pair[0].memory_bytes)


@dataclass(frozen=True, slots=True)
class Draft:
    """An outline with the seconds of its chunks: priced but for the timeline."""

    outline: Outline
    stages: Stages

    @property
    def layout(self) -> Layout:
        """With its boundaries set."""
        return self.outline.layout

    @property
    def bound_s(self) -> float:
        """The step takes at least this long."""
        pipe_s = lower_bound_s(self.stages.pipe, self.outline.part, self.layout.schedule in SPLIT)
        return pipe_s + min(self.stages.reduce_s) + self.stages.sync_s + self.stages.optimizer_s

    def step_s(self, orders: Orders) -> float:
        """The step: the pipe with its gradient reductions, and the optimizer once every stage is there."""
        stages = self.stages
        return length_s(stages.pipe, self.outline, orders, stages.rolling) + stages.sync_s + stages.optimizer_s


def length_s(pipe: Pipe, outline: Outline, orders: Orders, rolling: bool) -> float:
    """From the first stage's begin to the last one's end; of rolling steps, what the longest stage takes."""
    through = ends(pipe, outline, orders)
    return max(end - begin for end, begin in zip(through, begins(pipe, outline), strict=True)) if rolling else max(through)


def begins(pipe: Pipe, outline: Outline) -> list[float]:
    """When each stage's first microbatch comes to its first chunk."""
    came, out = 0.0, dict[int, float]()
    for stage, forward_s, hop_s in zip(pipe.stage_of, pipe.forward_s, (*pipe.p2p_s, 0.0), strict=True):
        out.setdefault(stage, came)
        came += (forward_s + hop_s) * outline.part[0]
    return [out[stage] for stage in sorted(out)]


def ends(pipe: Pipe, outline: Outline, orders: Orders) -> list[float]:
    """When each stage is through with its compute and its reductions: by recurrence where the schedule has one, else in its order."""
    if recurrence := RECURRENCES.get(outline.layout.schedule):
        return [end + reduce for end, reduce in zip(recurrence(pipe, outline.part), pipe.reduce_s, strict=True)]
    return orders.ends(outline.layout, pipe, outline.part)


def timeline(draft: Draft) -> Timeline:
    """The step as the runtime will execute it."""
    stages, outline = draft.stages, draft.outline
    cost = action_cost(stages.pipe, outline.part, stages.sync_s + stages.optimizer_s)
    return play(build(outline.layout, len(outline.samples)), cost)


def action_cost(pipe: Pipe, part: Sequence[float], step_s: float) -> Callable[[Action], float]:
    """Seconds of each Action; a smaller microbatch takes its part of a full one."""

    def cost(action: Action) -> float:
        match action.op:
            case op if op in COMPUTE:
                return pipe.seconds(op, action.chunk) * part[action.microbatch]
            case Op.SEND_F:
                return pipe.p2p_s[action.chunk] * part[action.microbatch]
            case Op.SEND_B:
                return pipe.p2p_s[action.chunk - 1] * part[action.microbatch]
            case Op.REDUCE:
                return pipe.reduce_s[action.chunk]
            case Op.STEP:
                return step_s
            case _:
                return 0.0

    return cost
