"""What moving this job costs, as measured: from the moment at which it is asked to move to the first step behind it.

Submitted ──▶ first StepDone            what its start took: what a move may take, until one was made
BetterPlan ─▶ drained ─▶ StepDone       what the last move took; of one that a failure ended nothing is known
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayplane.control.event import BetterPlan, Event, StepDone, Submitted
from rayplane.control.state import Arrangement, Draining, Placing, Running, Starting, State


@dataclass(frozen=True, slots=True)
class Moves:
    """Of one run; times are those of the caller's clock, in seconds."""

    cost_s: float | None = None
    """None until the first step is done."""
    began_s: float | None = None
    """When the move, or the start, that is under way began."""


def followed(moves: Moves, state: State, event: Event, now_s: float) -> Moves:
    """After an event that led to `state`."""
    match state, event:
        case Placing(), Submitted():
            return replace(moves, began_s=now_s)
        case Draining(then=Arrangement()), BetterPlan():
            return replace(moves, began_s=now_s)
        case Running(), StepDone() if moves.began_s is not None:
            return Moves(now_s - moves.began_s)
        case ((Placing() | Starting() | Running() | Draining(then=Arrangement())), _):
            return moves
        case _:
            return replace(moves, began_s=None)
