"""An order of the user to a job that trains, as a value, and what it means where the job stands.

| order         | brings                                | is done when                           | is refused when                   |
|---------------|---------------------------------------|----------------------------------------|-----------------------------------|
| pause         | PauseRequested                        | the job is paused                      | it is stopping, or ends first     |
| resume        | ResumeRequested                       | it goes on                             | it is not paused                  |
| stop          | StopRequested, unless it stops        | it has ended with what was done saved  | it fails instead                  |
| kill          | StopRequested, twice                  | it has ended                           | never                             |
| scale, layout | BetterPlan, once it runs or is paused | it trains so, or is paused to go on so | it stops, fails or pauses instead |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayplane.control.event import BetterPlan, Event, PauseRequested, ResumeRequested, StopRequested
from rayplane.control.state import Arrangement, Draining, Failed, Finished, Killing, Paused, Running, State
from rayplane.control.status import state_name
from rayplane.spec.job import LayoutSection

Verb = Literal["pause", "resume", "stop", "kill", "scale", "layout"]
MOVES: tuple[Verb, ...] = ("scale", "layout")
URGENT: tuple[Verb, ...] = ("pause", "stop", "kill")
"""Those that end a wait for places."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the user wants."""

    verb: Verb
    number: int = 0
    """Of scale: devices of a job that trains, replicas of one that serves."""
    layout: LayoutSection | None = None
    """Of layout."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order, in words; `done` is False where it was refused."""

    done: bool
    message: str


def leaving(state: State) -> bool:
    """Whether the job has ended, or is about to."""
    return isinstance(state, Finished | Failed) or (isinstance(state, Draining | Killing) and state.then in ("stop", "interrupt"))


def movable(state: State) -> bool:
    """Whether another arrangement can be taken on."""
    return isinstance(state, Running | Paused)


def meaning(order: Order, state: State, wanted: Arrangement | None = None) -> Answer | tuple[Event, ...] | None:
    """An answer at once, or the events that carry the order out (none where that is on its way); None: ask in a later state.

    `wanted` is what the planner found for an order that moves the job.
    """
    match order.verb, state:
        case _, (Finished() | Failed()):
            return Answer(False, f"the job has ended: it is {state_name(state)}")
        case "stop", _:
            return () if leaving(state) else (StopRequested(),)
        case "kill", _:
            return StopRequested(), StopRequested()
        case _ if leaving(state):
            return Answer(False, "the job is being stopped")
        case "pause", Paused():
            return _paused(state)
        case "pause", (Draining(then="pause") | Killing(then="pause")):
            return ()
        case "pause", _:
            return (PauseRequested(),)
        case "resume", (Paused() | Draining(then="pause")):
            return (ResumeRequested(),)
        case "resume", Killing(then="pause"):
            return None
        case "resume", _:
            return Answer(False, f"the job is {state_name(state)}, not paused")
        case _ if wanted and movable(state):
            same = wanted.layout == state.progress.arrangement.layout
            return Answer(True, f"it lies so already: {wanted.layout}") if same else (BetterPlan(wanted, "the user wants it"),)
        case _:
            return None


def outcome(order: Order, state: State, wanted: Arrangement | None = None) -> Answer | None:
    """What came of an order whose events the machine has had; None while it is being carried out."""
    match order.verb, state:
        case "pause", Paused():
            return _paused(state)
        case "pause", (Draining(then="pause") | Killing(then="pause")):
            return None
        case "resume", _ if not leaving(state):
            return Answer(True, f"it goes on from step {state.progress.step}")
        case (("stop" | "kill"), Finished(progress, drained)):
            return Answer(True, f"it {'stopped' if drained else 'finished'} after step {progress.step}")
        case (("stop" | "kill"), Failed(progress, message)):
            return Answer(order.verb == "kill", f"it ended after step {progress.step}: {message}")
        case (("stop" | "kill"), _):
            return None
        case (("scale" | "layout"), _) if not leaving(state) and wanted:
            return _moved(state, wanted)
        case _:
            return Answer(False, f"something else came first: the job is {state_name(state)}")


def _moved(state: State, wanted: Arrangement) -> Answer | None:
    progress = state.progress
    match state:
        case Running() if progress.arrangement.layout == wanted.layout:
            return Answer(True, f"it trains from step {progress.step} under {wanted.layout}")
        case Paused() if progress.arrangement.layout == wanted.layout:
            return Answer(True, f"it is paused after step {progress.step}, and will go on under {wanted.layout}")
        case Draining(then=then) if then != wanted:
            return Answer(False, f"something else came first: the job is {state_name(state)}")
        case Running() | Paused():
            return Answer(False, f"something else came first: the job is {state_name(state)} under {progress.arrangement.layout}")
        case _:
            return None


def _paused(state: Paused) -> Answer:
    return Answer(True, f"it is paused after step {state.progress.step}; rayplane resume goes on")
