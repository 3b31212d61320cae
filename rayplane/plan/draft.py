"""A layout priced but for its timeline: seconds of each stage, memory of each stage, and the timeline when it is asked for.

Draft ──▶ bound_s      no step of this layout can be shorter; the search plays only layouts whose bound is promising
      ├─▶ pipe_ends    when each stage's last backward ends
      └─▶ timeline     every Action in time, as the runtime will execute it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayplane.plan.compute import Seconds
from rayplane.plan.memory import StageMemory
from rayplane.plan.recurrence import RECURRENCES, Pipe, lower_bound_s
from rayplane.plan.timeline import Timeline, play
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build
from rayplane.spec.schedule import Action, Op


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds per stage: of a microbatch (compute, tp, p2p) and of a step (reduction left exposed, optimizer)."""

    compute: tuple[Seconds, ...]
    tp: tuple[Seconds, ...]
    p2p_s: tuple[float, ...]
    reduce_s: tuple[float, ...]
    optimizer_s: float

    @property
    def pipe(self) -> Pipe:
        """What the timeline needs."""
        pairs = list(zip(self.compute, self.tp, strict=True))
        return Pipe(tuple(c.forward + t.forward for c, t in pairs), tuple(c.backward + t.backward for c, t in pairs), self.p2p_s)


@dataclass(frozen=True, slots=True)
class Outline:
    """A layout with its boundaries set, and its memory."""

    layout: Layout
    samples: tuple[int, ...]
    """Samples of each microbatch of the busiest replica."""
    memory: tuple[StageMemory, ...]
    """By stage."""
    memory_bytes: int
    """Of the fullest stage."""

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
        """The stage that needs most."""
        return max(self.memory, key=lambda stage: stage.total)


@dataclass(frozen=True, slots=True)
class Draft:
    """An outline with the seconds of its stages: priced but for the timeline."""

    outline: Outline
    stages: Stages

    @property
    def layout(self) -> Layout:
        """With its boundaries set."""
        return self.outline.layout

    @property
    def bound_s(self) -> float:
        """The step takes at least this long."""
        return lower_bound_s(self.stages.pipe, self.outline.part) + min(self.stages.reduce_s) + self.stages.optimizer_s

    @property
    def step_s(self) -> float:
        """The step: the pipe, the gradient reduction behind it, and the optimizer once every stage is there."""
        ends = pipe_ends(self.stages.pipe, self.outline)
        return max(end + reduce for end, reduce in zip(ends, self.stages.reduce_s, strict=True)) + self.stages.optimizer_s


def pipe_ends(pipe: Pipe, outline: Outline) -> list[float]:
    """When each stage's last backward ends: by recurrence where the schedule has one, else by playing the Action list."""
    if recurrence := RECURRENCES.get(outline.layout.schedule):
        return recurrence(pipe, outline.part)
    nothing = (0.0,) * len(pipe.forward_s)
    schedule = build(outline.layout, len(outline.samples))
    return list(play(schedule, action_cost(pipe, outline.part, nothing, 0.0)).compute_end_s)


def timeline(draft: Draft) -> Timeline:
    """The step as the runtime will execute it."""
    stages, outline = draft.stages, draft.outline
    cost = action_cost(stages.pipe, outline.part, stages.reduce_s, stages.optimizer_s)
    return play(build(outline.layout, len(outline.samples)), cost)


def action_cost(pipe: Pipe, part: Sequence[float], reduce_s: Sequence[float], optimizer_s: float) -> Callable[[Action], float]:
    """Seconds of each Action; a smaller microbatch takes its part of a full one."""

    def cost(action: Action) -> float:
        match action.op:
            case Op.FORWARD:
                return pipe.forward_s[action.chunk] * part[action.microbatch]
            case Op.BACKWARD:
                return pipe.backward_s[action.chunk] * part[action.microbatch]
            case Op.SEND_F:
                return pipe.p2p_s[action.chunk] * part[action.microbatch]
            case Op.SEND_B:
                return pipe.p2p_s[action.chunk - 1] * part[action.microbatch]
            case Op.REDUCE:
                return reduce_s[action.chunk]
            case Op.STEP:
                return optimizer_s
            case _:
                return 0.0

    return cost
