"""The controller's decisions: `react(state, event, limits) -> (state, effects)`, without a clock, a file or a process.

| what happens                        | what follows                                                                         |
|-------------------------------------|--------------------------------------------------------------------------------------|
| the first failure of a live gang    | who is to blame is killed, the others are called back; the cause is named first      |
| all back, budget left               | a new attempt from the newest complete checkpoint                                    |
|   and devices or memory were lost   | first the planner looks for a layout for what is left                                |
| all back, budget spent              | Failed                                                                               |
| the user's mistake (kind "user")    | Failed with that message, whatever the budget                                        |
| a better plan while running         | drain: save after the current step, and go on under the new layout                   |
| pause while running                 | drain, give the devices back, wait for resume                                        |
| stop while running                  | drain: save after the current step and end                                           |
| stop while placing or starting      | kill, Finished: nothing was done that could be lost                                  |
| a second stop                       | kill without saving, Failed with exit code 130                                       |
| a failure while draining to stop    | kill, Failed: the last steps are not saved                                           |
| a slow rank                         | noted; where another device is free, it is treated as failed                         |
| anything after the end              | ignored                                                                              |

Budgets (budget.py) are for a run as a whole. Steps made in between give nothing back, so a job that fails every hour ends too; a
new `rayplane run` starts with whole budgets. Moves cost nothing of them.
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.control.budget import REPLANNED, pay
from rayplane.control.checkpoints import Checkpoint
from rayplane.control.event import (
    BetterPlan,
    Event,
    GangDone,
    KillDone,
    NothingFits,
    PauseRequested,
    Placed,
    PlaceFailed,
    Planned,
    RankExited,
    RankFailed,
    RankLost,
    RankSlow,
    ResumeRequested,
    Saved,
    Started,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
)
from rayplane.control.failure import cause_of, explain, failure_of
from rayplane.control.state import (
    Arrangement,
    Drain,
    Draining,
    Effect,
    Failed,
    Failure,
    Finished,
    Kill,
    Killing,
    Live,
    Paused,
    Pending,
    Placing,
    Progress,
    Recall,
    Release,
    Replan,
    Replanning,
    Running,
    Start,
    Starting,
    State,
    Vacate,
)
from rayplane.spec.job import LimitsSection

GATHER_S = 0.2
"""A rank's lost connection can be heard before the death that caused it (gloo notices within 0.15 s)."""

INTERRUPTED = 130
"""Exit code of a job that was killed by a second stop, as a shell reports SIGINT."""

Answer = tuple[State, tuple[Effect, ...]]


def react(state: State, event: Event, limits: LimitsSection) -> Answer:
    """The next state and what to do. An event that means nothing in a state leaves it as it is."""
    match state, event:
        case Pending(progress), Submitted(checkpoint, arrangement):
            return _start(replace(progress, checkpoint=checkpoint, arrangement=arrangement))
        case Placing(progress), Placed():
            return Starting(progress), ()
        case Placing(), PlaceFailed(message, retry=True):
            return _fail(state, Failure((), message))
        case Placing(progress), PlaceFailed(message):
            return _unplaced(progress, message)
        case Starting(progress), Started(step):
            return Running(replace(progress, step=step)), ()
        case ((Running() | Draining()), (StepDone() | Saved())):
            return replace(state, progress=_advanced(state.progress, event)), ()
        case ((Running() | Draining()), GangDone(step, drained)):
            return _done(state, step, drained)
        case _, (StopRequested() | PauseRequested() | ResumeRequested() | BetterPlan()):
            return _asked(state, event)
        case Running(), RankSlow(rank, factor, replace=True):
            return _fail(state, Failure((rank,), f"takes {factor:.1f} times as long as its peers", "straggler"))
        case ((Placing() | Starting() | Running() | Draining()), (RankFailed() | RankExited() | RankLost() | TimedOut())):
            return _fail(state, failure_of(event))
        case Killing(), (RankFailed() | RankExited() | RankLost()):
            return _gather(state, failure_of(event)), ()
        case Killing(), KillDone(checkpoint):
            return _killed(state, checkpoint, limits)
        case Replanning(progress), Planned(arrangement):
            return _start(replace(progress, arrangement=arrangement))
        case Replanning(progress, why), NothingFits(message):
            return Failed(progress, f"{why}; {message}", 1), (Release(),)
        case _:
            return state, ()


def _start(progress: Progress) -> Answer:
    """The next attempt, from the newest checkpoint."""
    progress = replace(progress, attempt=progress.attempt + 1, step=progress.checkpoint.step)
    return Placing(progress), (Start(progress.attempt, progress.checkpoint, progress.arrangement),)


def _unplaced(progress: Progress, message: str) -> Answer:
    """The cluster cannot hold the layout: at first that is the end, later the cluster has changed."""
    if progress.attempt == 1:
        return Failed(progress, message, 1), (Release(),)
    return Replanning(progress, message), (Replan("node", ()),)


def _advanced(progress: Progress, event: StepDone | Saved) -> Progress:
    match event:
        case StepDone(step):
            return replace(progress, step=step)
        case Saved(checkpoint):
            return replace(progress, checkpoint=checkpoint)


def _done(state: Running | Draining, step: int, drained: bool) -> Answer:
    progress = replace(state.progress, step=step)
    if not drained or not isinstance(state, Draining) or state.then == "stop":
        return Finished(progress, drained), (Release(),)
    if isinstance(state.then, Arrangement):
        return _start(replace(progress, arrangement=state.then))
    return Paused(progress), (Vacate(),)


def _asked(state: State, event: StopRequested | PauseRequested | ResumeRequested | BetterPlan) -> Answer:
    """What the user, or who watches the measurements, wants."""
    match state, event:
        case _, StopRequested():
            return _stop(state)
        case Running(progress), PauseRequested():
            return Draining(progress, "pause"), (Drain(),)
        case Draining(progress, Arrangement()), PauseRequested():
            return Draining(progress, "pause"), ()
        case ((Placing(progress) | Starting(progress)), PauseRequested()):
            return Killing(progress, (), "pause"), (Kill(),)
        case Killing(then="retry"), PauseRequested():
            return replace(state, then="pause"), ()
        case Replanning(progress), PauseRequested():
            return Paused(progress), (Vacate(),)
        case Paused(progress), ResumeRequested():
            return _start(progress)
        case Draining(progress, "pause"), ResumeRequested():
            return Draining(progress, progress.arrangement), ()
        case Paused(progress), BetterPlan(arrangement):
            return Paused(replace(progress, arrangement=arrangement)), ()
        case Running(progress), BetterPlan(arrangement) if arrangement != progress.arrangement:
            return Draining(progress, arrangement), (Drain(),)
        case _:
            return state, ()


def _stop(state: State) -> Answer:
    match state:
        case Pending(progress) | Paused(progress) | Replanning(progress):
            return Finished(progress, drained=True), (Release(),)
        case Placing(progress) | Starting(progress):
            return Killing(progress, (), "stop"), (Kill(),)
        case Running(progress):
            return Draining(progress), (Drain(),)
        case Draining(progress, "stop"):
            return Killing(progress, (), "interrupt"), (Kill(),)
        case Draining(progress):
            return Draining(progress, "stop"), ()
        case Killing(then="retry" | "pause"):
            return replace(state, then="stop"), ()
        case _:
            return state, ()


def _fail(state: Live, failure: Failure) -> Answer:
    if isinstance(state, Draining) and state.then == "stop":
        return Killing(state.progress, (failure,), "stop"), (Kill(),)
    pausing = isinstance(state, Draining) and state.then == "pause"
    killing = Killing(state.progress, (failure,), "pause" if pausing else "retry")
    return killing, (Kill(),) if failure.kind == "user" else (Recall(GATHER_S if failure.consequence else 0.0),)


def _gather(state: Killing, failure: Failure) -> Killing:
    known = {rank for f in state.failures for rank in f.ranks}
    return state if known.issuperset(failure.ranks) else replace(state, failures=(*state.failures, failure))


def _killed(state: Killing, checkpoint: Checkpoint, limits: LimitsSection) -> Answer:
    progress = replace(state.progress, checkpoint=checkpoint)
    if state.then == "interrupt":
        return Failed(progress, "stopped before the last steps were saved", INTERRUPTED), (Release(),)
    if not state.failures:
        progress = replace(progress, step=checkpoint.step)
        return (Paused(progress), (Vacate(),)) if state.then == "pause" else (Finished(progress, drained=True), (Release(),))
    reason, cause = explain(state.failures), cause_of(state.failures)
    if cause.kind == "user":
        return Failed(progress, reason, 1), (Release(),)
    if state.then == "stop":
        return Failed(progress, f"failed before the last steps were saved: {reason}", 1), (Release(),)
    spent = pay(progress.spent, limits, cause.kind, progress.step)
    if isinstance(spent, str):
        return Failed(progress, f"{reason}; {spent}", 1), (Release(),)
    progress = replace(progress, spent=spent)
    if state.then == "pause":
        return Paused(progress), (Vacate(),)
    if cause.kind in REPLANNED:
        return Replanning(progress, reason), (Replan(cause.kind, cause.ranks),)
    return _start(progress)
