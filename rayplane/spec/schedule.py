"""A schedule is data: one tuple of Actions per rank of the pipe.

Builders (builders.py) list compute Actions; passes (passes.py) add communication, the gradient reduction and the optimizer step, and
prove that the result ends, cannot deadlock and runs every microbatch once. The runtime executes this list, the planner prices it, the
trace draws it.

    one_f_one_b(num_stages=2, num_microbatches=3), compute only:
    0  F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
    1  F1.0 B1.0 F1.1 B1.1 F1.2 B1.2

`F1.2` is the forward of model chunk 1 for microbatch 2. Letters: F forward, B backward, or its two halves: I the gradient of the input
and W those of the weights; SF/RF send and post-receive of the forward's activation (named by the chunk that produces, or consumes, it),
SB/RB the same for its gradient; R reduction of a chunk's gradients over dp, O optimizer step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from rayplane.spec.layout import stage_of_chunk


class Op(StrEnum):
    """What an Action does."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRAD = "I"
    WEIGHT_GRAD = "W"
    SEND_F = "SF"
    RECV_F = "RF"
    SEND_B = "SB"
    RECV_B = "RB"
    REDUCE = "R"
    STEP = "O"


COMPUTE = frozenset({Op.FORWARD, Op.BACKWARD, Op.INPUT_GRAD, Op.WEIGHT_GRAD})
GIVES_WEIGHT_GRAD = frozenset({Op.BACKWARD, Op.WEIGHT_GRAD})
_ACTION = re.compile(r"(SF|RF|SB|RB|F|B|I|W|R|O)(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a schedule. `R` and `O` concern no microbatch and print microbatch 0."""

    op: Op
    chunk: int
    microbatch: int = 0

    def __str__(self) -> str:
        return f"{self.op}{self.chunk}.{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """The Action that prints as `text`; ValueError for anything else."""
        match = _ACTION.fullmatch(text)
        if not match:
            raise ValueError(f"not an action: {text!r}")
        return cls(Op(match[1]), int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """One tuple of Actions per rank of the pipe; its name says how chunks lie on stages."""

    name: str
    num_microbatches: int
    num_chunks: int
    ranks: tuple[tuple[Action, ...], ...]

    def stage_of(self, chunk: int) -> int:
        """The pipe rank that runs a chunk."""
        return stage_of_chunk(self.name, len(self.ranks), chunk)

    def __str__(self) -> str:
        return "\n".join(f"{rank}  {' '.join(map(str, actions))}" for rank, actions in enumerate(self.ranks))


@dataclass(frozen=True, slots=True)
class Span:
    """An Action in time, as it was played or as it was measured."""

    action: Action
    start_s: float
    end_s: float


class ScheduleError(Exception):
    """A schedule that would deadlock, skip work or do it twice."""
