"""The controller's decisions: `react(state, event, limits) -> (state, effects)`, without a clock, a file or a process.

| what happens                        | what follows                                                                         |
|-------------------------------------|--------------------------------------------------------------------------------------|
| the first failure of a live gang    | every rank is killed at once; later failures are gathered, the cause is named first  |
| all killed, budget left             | a new attempt from the newest complete checkpoint                                    |
| all killed, budget spent            | Failed                                                                               |
| the user's mistake (kind "user")    | Failed with that message, whatever the budget                                        |
| stop while running                  | drain: save after the current step and end                                           |
| stop while placing or starting      | kill, Finished: nothing was done that could be lost                                  |
| a second stop                       | kill without saving, Failed with exit code 130                                       |
| a failure while draining            | kill, Failed: the last steps are not saved                                           |
| anything after the end              | ignored                                                                              |

The budget: a run may restart `limits.restarts` times in all. Steps made in between give nothing back, so a job that fails
every hour ends too; a new `rayplane run` starts with the whole budget.
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.control.checkpoints import Checkpoint
from rayplane.control.event import (
    Event,
    GangDone,
    KillDone,
    Placed,
    PlaceFailed,
    RankExited,
    RankFailed,
    RankLost,
    Saved,
    Started,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
)
from rayplane.control.failure import explain, failure_of
from rayplane.control.state import (
    Drain,
    Draining,
    Effect,
    Failed,
    Failure,
    Finished,
    Kill,
    Killing,
    Live,
    Pending,
    Placing,
    Progress,
    Release,
    Running,
    Start,
    Starting,
    State,
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
        case Pending(), Submitted(checkpoint):
            return _start(1, checkpoint)
        case Placing(progress), Placed():
            return Starting(progress), ()
        case Placing(), PlaceFailed(message, retry=True):
            return _fail(state, Failure((), message))
        case Placing(progress), PlaceFailed(message):
            return Failed(progress, message, 1), (Release(),)
        case Starting(progress), Started(step):
            return Running(replace(progress, step=step)), ()
        case ((Running() | Draining()), (StepDone() | Saved())):
            return replace(state, progress=_advanced(state.progress, event)), ()
        case ((Running(progress) | Draining(progress)), GangDone(step, drained)):
            return Finished(replace(progress, step=step), drained), (Release(),)
        case _, StopRequested():
            return _stop(state)
        case ((Placing() | Starting() | Running() | Draining()), (RankFailed() | RankExited() | RankLost() | TimedOut())):
            return _fail(state, failure_of(event))
        case Killing(), (RankFailed() | RankExited() | RankLost()):
            return _gather(state, failure_of(event)), ()
        case Killing(), KillDone(checkpoint):
            return _killed(state, checkpoint, limits)
        case _:
            return state, ()


def _start(attempt: int, checkpoint: Checkpoint) -> Answer:
    return Placing(Progress(attempt, checkpoint.step, checkpoint)), (Start(attempt, checkpoint),)


def _advanced(progress: Progress, event: StepDone | Saved) -> Progress:
    match event:
        case StepDone(step):
            return replace(progress, step=step)
        case Saved(checkpoint):
            return replace(progress, checkpoint=checkpoint)


def _stop(state: State) -> Answer:
    match state:
        case Pending(progress):
            return Finished(progress, drained=True), (Release(),)
        case Placing(progress) | Starting(progress):
            return Killing(progress, (), "stop"), (Kill(),)
        case Running(progress):
            return Draining(progress), (Drain(),)
        case Draining(progress):
            return Killing(progress, (), "interrupt"), (Kill(),)
        case Killing(then="retry"):
            return replace(state, then="stop"), ()
        case _:
            return state, ()


def _fail(state: Live, failure: Failure) -> Answer:
    then = Killing(state.progress, (failure,), "stop" if isinstance(state, Draining) else "retry")
    return then, (Kill(GATHER_S if failure.consequence else 0.0),)


def _gather(state: Killing, failure: Failure) -> Killing:
    known = {rank for f in state.failures for rank in f.ranks}
    return state if known.issuperset(failure.ranks) else replace(state, failures=(*state.failures, failure))


def _killed(state: Killing, checkpoint: Checkpoint, limits: LimitsSection) -> Answer:
    progress = replace(state.progress, checkpoint=checkpoint)
    if state.then == "interrupt":
        return Failed(progress, "stopped before the last steps were saved", INTERRUPTED), (Release(),)
    if not state.failures:
        return Finished(replace(progress, step=checkpoint.step), drained=True), (Release(),)
    reason = explain(state.failures)
    if any(f.user for f in state.failures):
        return Failed(progress, reason, 1), (Release(),)
    if state.then == "stop":
        return Failed(progress, f"failed before the last steps were saved: {reason}", 1), (Release(),)
    if progress.attempt > limits.restarts:
        return Failed(progress, f"{reason}; {_spent(limits.restarts)}", 1), (Release(),)
    return _start(progress.attempt + 1, checkpoint)


def _spent(restarts: int) -> str:
    return f"limits.restarts ({restarts}) is spent" if restarts else "limits.restarts is 0"
