"""Carries out what `react` decides: the one place where the controller touches ranks, files and the clock.

messages ─Attempt.fold─▶ events ─react─▶ effects ─WorkerGroup, Replanner─▶ messages ...
                        ▲  deadlines, stop, sources   │
                        └── Placed, KillDone, … ◀─────┘        journal and observers see every event
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from rayplane.control.attempt import Attempt
from rayplane.control.checkpoints import newest
from rayplane.control.event import (
    Event,
    KillDone,
    NothingFits,
    Placed,
    PlaceFailed,
    Planned,
    RankExited,
    RankFailed,
    RankLost,
    StepDone,
    StopRequested,
    Submitted,
    TimedOut,
)
from rayplane.control.event_log import opening
from rayplane.control.journal import Journal
from rayplane.control.lock import lease_path
from rayplane.control.machine import react
from rayplane.control.record import Record
from rayplane.control.result import Result
from rayplane.control.source import Replanner, Source
from rayplane.control.state import (
    Drain,
    Effect,
    Failed,
    Finished,
    Kill,
    Killing,
    Pending,
    Progress,
    Recall,
    Release,
    Replan,
    Start,
    State,
    Vacate,
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
RECALL_S = 3.0
"""A rank that is called back and does not come for so long is killed."""
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

    def __init__(
        self,
        task: Task,
        group: WorkerGroup,
        observers: Sequence[Observer] = (),
        sources: Sequence[Source] = (),
        replanner: Replanner | None = None,
    ):
        """Without a replanner a job goes on under the arrangement that it has."""
        found = newest(task.directory)
        self.state: State = Pending(Progress(0, found.step, found, task.arrangement))
        self._task, self._group, self._observers = task, group, observers
        self._sources, self._replanner = sources, replanner
        self._journal = Journal(task.directory, opening=opening(task.limits))
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
        submitted = Submitted(newest(self._task.directory), self._task.arrangement)
        self._handle([StopRequested() if self._stop.take() else submitted])
        while not isinstance(self.state, Finished | Failed):
            wishes: list[Event] = [StopRequested()] if self._stop.take() else []
            wishes += [event for source in self._sources for event in source.take(self.state)]
            messages = self._listen(0.0 if wishes else POLL_S)
            self._handle([*wishes, *messages])
            self._handle(self._overdue())

    def _handle(self, events: Sequence[Event]) -> None:
        """All events at hand first, then effects, so that a batch with several failures leads to one kill."""
        pending, effects = deque(events), deque[Effect]()
        while pending or effects:
            if not pending:
                pending.extend(self._carry_out(effects.popleft()))
                continue
            effects.extend(self._feed(pending.popleft()))

    def _feed(self, event: Event) -> tuple[Effect, ...]:
        """Take in an event; what is to be done about it."""
        before = self.state
        self.state, effects = react(self.state, event, self._task.limits)
        self._note(before, event)
        return effects

    def _carry_out(self, effect: Effect) -> list[Event]:
        match effect:
            case Start():
                return self._start(effect)
            case Recall(gather_s):
                return self._leave(self._listen(gather_s), lambda: self._group.recall(RECALL_S, self._to_blame()))
            case Kill():
                return self._leave([], self._group.kill)
            case Drain():
                self._group.send({"type": "drain"})
                return []
            case Replan():
                return self._replan(effect)
            case Release() | Vacate():
                self._spawned = False
                self._group.close()
                return []

    def _start(self, start: Start) -> list[Event]:
        self._spawned = False
        try:
            lease = grant(lease_path(self._task.directory), self._gives_up)
            self._group.start(self._task.launched(start, lease), self._gives_up)
        except GaveUp:
            return []  # what it gave up for is an event to come
        except PlacementError as error:
            return [PlaceFailed(str(error))]
        except RayplaneError as error:
            return [PlaceFailed(str(error), retry=True)]
        self._spawned = True
        self._attempt = Attempt(start.arrangement.layout.size, time.monotonic())
        self._record.new_attempt()
        return [Placed()]

    def _leave(self, last_words: list[Event], how: Callable[[], object]) -> list[Event]:
        """End an attempt. What is heard of ranks' ends from then on is our own doing, unless their nodes are gone."""
        for event in last_words:
            self._feed(event)
        how()
        heard = self._listen(0.0)
        words = [e for e in heard if not isinstance(e, RankExited | RankLost) or (isinstance(e, RankLost) and e.kind == "node")]
        return [*words, KillDone(newest(self._task.directory))]

    def _to_blame(self) -> frozenset[int]:
        """Ranks that failed first, of those that are known."""
        failures = self.state.failures if isinstance(self.state, Killing) else ()
        return frozenset(rank for f in failures if not f.consequence for rank in f.ranks)

    def _replan(self, effect: Replan) -> list[Event]:
        now = self.state.progress.arrangement
        if self._replanner is None:
            return [Planned(now)]
        try:
            return [Planned(self._replanner.again(now, effect.kind, effect.ranks, self._gives_up))]
        except GaveUp:
            return []
        except RayplaneError as error:
            return [NothingFits(str(error))]

    def _gives_up(self) -> bool:
        return self._stop.asked() or any(source.urgent() for source in self._sources)

    def _listen(self, timeout_s: float) -> list[Event]:
        if not self._spawned:
            time.sleep(timeout_s)
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
        changed = type(before) is not type(self.state)
        at_once = changed or not isinstance(event, StepDone | RankFailed | RankExited | RankLost)  # which come from every rank
        if at_once or self._journal.due(time.time()):
            self._journal.status(self._record.status(self.state), at_once)
        if changed:
            log.info("%s attempt %d: %s", self._task.launch.name, self.state.progress.attempt, state_name(self.state))
        for observer in self._observers:
            observer.on_event(self.state, event)
