"""Carries out what `react` decides: the one place where the controller touches ranks, files and the clock.

messages ─Attempt.fold─▶ events ─react─▶ effects ─WorkerGroup─▶ messages ...
                        ▲  deadlines, stop      │
                        └── Placed, KillDone ◀──┘        journal and observers see every event
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rayplane.control.attempt import Attempt
from rayplane.control.checkpoints import newest
from rayplane.control.failure import explain
from rayplane.control.journal import Journal
from rayplane.control.lock import lease_path
from rayplane.control.machine import react
from rayplane.control.result import Result, Tally
from rayplane.control.state import (
    Drain,
    Draining,
    Effect,
    Event,
    Failed,
    Finished,
    Kill,
    KillDone,
    Killing,
    Pending,
    Placed,
    PlaceFailed,
    Progress,
    RankExited,
    RankLost,
    Release,
    Running,
    Start,
    Starting,
    State,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
)
from rayplane.control.status import Status, read_status, state_name, this_process
from rayplane.control.stop import Stop
from rayplane.errors import PlacementError, RayplaneError
from rayplane.runtime.group import Launch, WorkerGroup
from rayplane.runtime.lease import grant
from rayplane.runtime.patience import GaveUp
from rayplane.spec.job import LimitsSection
from rayplane.spec.report import StepReport

POLL_S = 0.2
"""How soon a stop or a deadline is noticed when no rank speaks."""
LOOKS = 5
"""How often more a late rank is listened to before it counts as hung."""

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Looks on: a progress bar, a metrics exporter."""

    def on_event(self, state: State, event: Event) -> None:
        """An event came and led to `state`."""

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Every rank finished a step; one report per rank."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to run, and how long to bear with it."""

    directory: Path
    """The job's folder: checkpoints, state.json, events.jsonl."""
    steps: int
    limits: LimitsSection
    launch: Launch
    """Its config gets `resume` and `attempt` at every start."""
    model: dict[str, Any] = field(default_factory=dict)
    start_timeout_s: float = 900.0
    """From spawning to the last rank being ready to train: imports, rendezvous, reading weights, measuring the held-out loss.

    And from the last step to the end, where that loss is measured once more.
    """


class Controller:
    """Drives one job on a group of ranks to its end. The group is closed on every way out."""

    def __init__(self, task: Task, group: WorkerGroup, observers: Sequence[Observer] = ()):
        found = newest(task.directory)
        self.state: State = Pending(Progress(0, found.step, found))
        self._task, self._group, self._observers = task, group, observers
        self._journal = Journal(task.directory)
        self._attempt = Attempt(task.launch.layout.size, time.monotonic())
        self._tally = Tally()
        self._stop = Stop()
        self._spawned = False
        self._params = 0
        known = read_status(task.directory)
        self._holdout_before = known.holdout_before if known and found.path else None

    def run(self, stop: Stop) -> Result:
        """Until the job ends."""
        self._stop, began_s = stop, time.monotonic()
        try:
            self._supervise()
        except BaseException as error:
            reason = str(error) if isinstance(error, RayplaneError) else f"the controller failed: {error!r}"
            self.state = Failed(self.state.progress, reason, 1)
            self._journal.status(self._status(), None)
            raise
        finally:
            self._group.close()
            self._journal.close()
        return self._result(time.monotonic() - began_s)

    def _supervise(self) -> None:
        self._handle([StopRequested() if self._stop.take() else Submitted(newest(self._task.directory))])
        while not isinstance(self.state, Finished | Failed):
            stops: list[Event] = [StopRequested()] if self._stop.take() else []
            messages = self._listen(0.0 if stops else POLL_S)
            self._handle([*stops, *messages])
            self._handle(self._overdue())

    def _handle(self, events: Sequence[Event]) -> None:
        """All events at hand first, then effects, so that a batch with several failures leads to one kill."""
        pending, effects = deque(events), deque[Effect]()
        while pending or effects:
            if not pending:
                pending.extend(self._carry_out(effects.popleft()))
                continue
            event = pending.popleft()
            before = self.state
            self.state, new = react(self.state, event, self._task.limits)
            effects.extend(new)
            self._record(before, event)

    def _carry_out(self, effect: Effect) -> list[Event]:
        match effect:
            case Start():
                return self._start(effect)
            case Kill(gather_s):
                last_words = self._listen(gather_s)
                self._group.kill()
                last_words += [e for e in self._listen(0.0) if not isinstance(e, RankExited | RankLost)]  # exits are our own doing now
                return [*last_words, KillDone(newest(self._task.directory))]
            case Drain():
                self._group.send({"type": "drain"})
                return []
            case Release():
                self._group.close()
                return []

    def _start(self, start: Start) -> list[Event]:
        launch, self._spawned = self._task.launch, False
        config = {**launch.config, "resume": start.checkpoint.path, "attempt": start.attempt}
        try:
            lease = grant(lease_path(self._task.directory), self._stop.asked)
            self._group.start(replace(launch, config=config, lease=lease), self._stop.asked)
        except GaveUp:
            return []  # the stop itself is an event to come
        except PlacementError as error:
            return [PlaceFailed(str(error))]
        except RayplaneError as error:
            return [PlaceFailed(str(error), retry=True)]
        self._spawned = True
        self._attempt = Attempt(launch.layout.size, time.monotonic())
        self._tally.new_attempt()
        return [Placed()]

    def _listen(self, timeout_s: float) -> list[Event]:
        if not self._spawned:
            return []
        messages = self._group.poll(timeout_s)
        now_s = time.monotonic()
        return [event for message in messages for event in self._attempt.fold(message, now_s)]

    def _overdue(self) -> list[Event]:
        """TimedOut, if some ranks are late. When this process itself stood still, what they said meanwhile is still on its way."""
        for _ in range(LOOKS):
            if not self._late():
                return []
            self._handle(self._listen(POLL_S))
        return self._late()

    def _late(self) -> list[Event]:
        match self.state:
            case Starting(progress):
                kind, timeout_s = "start", self._task.start_timeout_s
            case Running(progress) if progress.step >= self._task.steps:
                kind, timeout_s = "end", max(self._task.start_timeout_s, self._task.limits.step_timeout_s)
            case Running(progress):
                kind, timeout_s = "step", self._task.limits.step_timeout_s
            case Draining(progress):
                kind, timeout_s = "drain", self._task.limits.step_timeout_s
            case _:
                return []
        ranks = self._attempt.late(time.monotonic(), timeout_s)
        return [TimedOut(kind, ranks, timeout_s, progress.step)] if ranks else []

    def _record(self, before: State, event: Event) -> None:
        if isinstance(event, StepDone):
            reports = self._attempt.take(event.step)
            self._tally.add(reports)
            for observer in self._observers:
                observer.on_step(reports)
        self._params = self._attempt.params or self._params
        if self._holdout_before is None:
            self._holdout_before = self._attempt.holdout_before
        self._journal.event(self.state, event, time.time())
        self._journal.status(self._status(), event)
        if type(before) is not type(self.state):
            log.info("%s attempt %d: %s", self._task.launch.name, self.state.progress.attempt, state_name(self.state))
        for observer in self._observers:
            observer.on_event(self.state, event)

    def _status(self) -> Status:
        progress, task, (pid, host) = self.state.progress, self._task, this_process()
        return Status(
            name=task.launch.name,
            state=state_name(self.state),
            step=progress.step,
            steps=task.steps,
            loss=self._tally.losses.get(progress.step),
            tokens_per_s=self._tally.tokens_per_s,
            layout=str(task.launch.layout),
            restarts=max(progress.attempt - 1, 0),
            checkpoint=progress.checkpoint.path,
            message=_message(self.state),
            pid=pid,
            host=host,
            updated_unix_s=time.time(),
            model=task.model,
            holdout_before=self._holdout_before,
        )

    def _result(self, wall_s: float) -> Result:
        progress = self.state.progress
        return Result(
            state=state_name(self.state),
            message=_message(self.state),
            exit_code=self.state.exit_code if isinstance(self.state, Failed) else 0,
            step=progress.step,
            losses=self._tally.losses,
            holdout_before=self._holdout_before,
            holdout_after=self._attempt.holdout_after,
            tokens_per_s=self._tally.tokens_per_s,
            stages=self._tally.stages(),
            checkpoint=progress.checkpoint.path,
            restarts=max(progress.attempt - 1, 0),
            params=self._params,
            wall_s=wall_s,
        )


def _message(state: State) -> str:
    match state:
        case Failed(message=message):
            return message
        case Killing(failures=failures) if failures:
            return explain(failures)
        case _:
            return ""
