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
from dataclasses import replace
from typing import Protocol

from rayplane.control.attempt import Attempt
from rayplane.control.checkpoints import newest
from rayplane.control.event import (
    Event,
    KillDone,
    Placed,
    PlaceFailed,
    RankExited,
    RankLost,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
)
from rayplane.control.journal import Journal
from rayplane.control.lock import lease_path
from rayplane.control.machine import react
from rayplane.control.record import Record
from rayplane.control.result import Result
from rayplane.control.state import (
    Drain,
    Effect,
    Failed,
    Finished,
    Kill,
    Pending,
    Progress,
    Release,
    Start,
    State,
)
from rayplane.control.status import state_name
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.errors import PlacementError, RayplaneError
from rayplane.runtime.group import WorkerGroup
from rayplane.runtime.lease import grant
from rayplane.runtime.patience import GaveUp
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


class Controller:
    """Drives one job on a group of ranks to its end. The group is closed on every way out."""

    def __init__(self, task: Task, group: WorkerGroup, observers: Sequence[Observer] = ()):
        found = newest(task.directory)
        self.state: State = Pending(Progress(0, found.step, found))
        self._task, self._group, self._observers = task, group, observers
        self._journal = Journal(task.directory)
        self._attempt = Attempt(task.launch.layout.size, time.monotonic())
        self._record = Record(task, self.state)
        self._stop = Stop()
        self._spawned = False

    def run(self, stop: Stop) -> Result:
        """Until the job ends."""
        self._stop, began_s = stop, time.monotonic()
        try:
            self._supervise()
        except BaseException as error:
            reason = str(error) if isinstance(error, RayplaneError) else f"the controller failed: {error!r}"
            self.state = Failed(self.state.progress, reason, 1)
            self._journal.status(self._record.status(self.state), at_once=True)
            raise
        finally:
            self._group.close()
            self._journal.close()
        return self._record.result(self.state, time.monotonic() - began_s)

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
            self._note(before, event)

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
        self._record.new_attempt()
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
        if (bears := self._task.bears(self.state)) is None:
            return []
        kind, timeout_s = bears
        ranks = self._attempt.late(time.monotonic(), timeout_s)
        return [TimedOut(kind, ranks, timeout_s, self.state.progress.step)] if ranks else []

    def _note(self, before: State, event: Event) -> None:
        if isinstance(event, StepDone):
            reports = self._attempt.take(event.step)
            self._record.add(reports)
            for observer in self._observers:
                observer.on_step(reports)
        self._record.hear(self._attempt)
        self._journal.event(state_name(self.state), event, time.time())
        self._journal.status(self._record.status(self.state), at_once=not isinstance(event, StepDone))
        if type(before) is not type(self.state):
            log.info("%s attempt %d: %s", self._task.launch.name, self.state.progress.attempt, state_name(self.state))
        for observer in self._observers:
            observer.on_event(self.state, event)
