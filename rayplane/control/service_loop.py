"""Carries out what a service's machine decides: the one place where its replicas, ingresses, files and clock meet.

members' words ─▶ Replicas, Ingresses ─▶ events ─decide─▶ effects ─▶ Replicas, Ingresses ─▶ members
once a second: the ingresses' load ─▶ Steering ─▶ Wanted, LayoutWanted                        from outside: post
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from rayplane.control.ingresses import Ingresses
from rayplane.control.journal import Journal
from rayplane.control.load import Load
from rayplane.control.machine import INTERRUPTED
from rayplane.control.member import Broken, Member, Said, Word
from rayplane.control.replicas import Replicas
from rayplane.control.service import decide
from rayplane.control.service_record import ServiceRecord, ServiceResult
from rayplane.control.service_state import (
    DrainReplica,
    End,
    KillReplica,
    LayoutWanted,
    MoveEnded,
    PlaceWanted,
    ReplicaFailed,
    Route,
    Service,
    ServiceEffect,
    ServiceEvent,
    StartIngress,
    StartReplica,
    StopAsked,
    StopIngress,
    TellMove,
    Wanted,
)
from rayplane.control.service_status import ServiceStatus, service_state
from rayplane.control.service_task import Ground, ServiceTask
from rayplane.control.steering import Steering
from rayplane.control.stop import Stop
from rayplane.errors import RayplaneError

POLL_S = 0.1
LOOK_S = 1.0
"""How often load and deadlines are looked at."""
LAST_WORDS_S = 2.0
"""How long replicas on which nothing runs have to say what they have done."""

log = logging.getLogger(__name__)


class ServiceObserver(Protocol):
    """Looks on: a line of the load, a metrics exporter."""

    def on_event(self, service: Service, event: ServiceEvent) -> None:
        """An event came and led to `service`."""

    def on_status(self, status: ServiceStatus) -> None:
        """How it stands, about once a second."""


class ServiceController:
    """Drives one service to its end. No member of it is left on any way out."""

    def __init__(self, task: ServiceTask, ground: Ground, observers: Sequence[ServiceObserver] = ()):
        self.service = Service(way=task.way, hold=task.hold)
        self._task, self._observers = task, observers
        self._words: queue.SimpleQueue[tuple[Member, Word]] = queue.SimpleQueue()
        self._wishes: queue.SimpleQueue[LayoutWanted] = queue.SimpleQueue()
        self._replicas = Replicas(task, ground, self._heard)
        self._ingresses = Ingresses(task, ground, self._heard)
        self._steering = Steering(task)
        self._record = ServiceRecord(task)
        self._journal = Journal(task.directory, "name")
        self._stops = 0

    def post(self, wish: LayoutWanted) -> None:
        """Another layout is wanted by someone outside; may be called from any thread."""
        self._wishes.put(wish)

    def run(self, stop: Stop) -> ServiceResult:
        """Until the service ends."""
        try:
            self._supervise(stop)
        except BaseException as error:
            reason = str(error) if isinstance(error, RayplaneError) else f"the controller failed: {error!r}"
            self._journal.status(self._record.status(self.service, "failed", reason), at_once=True)
            raise
        finally:
            self._end()
            self._journal.close()
        state, message, exit_code = self._outcome()
        self._record.load = Load()
        result = self._record.result(self.service, state, message, exit_code)
        self._tell(self._record.status(self.service, state, message), at_once=True)
        return result

    def _supervise(self, stop: Stop) -> None:
        self._handle([Wanted(self._task.replicas)])
        look_s = time.monotonic() + LOOK_S
        while self.service.ended is None:
            asked = stop.take()
            self._stops += asked
            self._handle([*([StopAsked()] if asked else []), *self._listen()])
            if (now_s := time.monotonic()) >= look_s:
                look_s = now_s + LOOK_S
                self._look(now_s)

    def _heard(self, member: Member, word: Word) -> None:
        """From the members' threads."""
        self._words.put((member, word))

    def _listen(self) -> list[ServiceEvent]:
        """What follows from the words that are there; from the first that comes where there is none yet."""
        events: list[ServiceEvent] = []
        with suppress(queue.Empty):
            events += self._events(*self._words.get(timeout=POLL_S))
            for _ in range(self._words.qsize()):
                events += self._events(*self._words.get_nowait())
        with suppress(queue.Empty):
            events.append(self._steering.bounded(self._wishes.get_nowait()))
        return events

    def _events(self, member: Member, word: Word) -> list[ServiceEvent]:
        if not self._replicas.owns(member):
            events = self._ingresses.hear(member, word)
            self._record.listens(self._urls())
            return events
        match word:
            case Said({"type": "served"} as message):
                self._record.served(self._replicas.number(member), message)
                return []
            case Broken(reason, placed=False) if not self.service.move:
                return self._no_room(self._replicas.hear(member, word), reason)
        return self._replicas.hear(member, word)

    def _no_room(self, failed: list[ServiceEvent], reason: str) -> list[ServiceEvent]:
        """A replica has no place: the service goes on with those that have one, if there are any."""
        phases = [replica.phase for replica in self.service.replicas]
        room = phases.count("serving") + phases.count("starting") - 1
        if not phases.count("serving"):
            return [replace(event, user=True) for event in failed if isinstance(event, ReplicaFailed)]
        log.warning("%s: no place for one more replica: %s", self._task.name, reason)
        return [self._steering.no_room(room)]

    def _handle(self, events: Sequence[ServiceEvent]) -> None:
        """Each event, with what it leads to, before the next."""
        pending = deque(events)
        while pending:
            event = pending.popleft()
            before = self.service
            self.service, effects = decide(before, event, self._task.restarts)
            if self.service != before:
                self._steering.noted(before, event)
                self._note(event)
            for effect in effects:
                pending.extend(self._carry_out(effect))

    def _carry_out(self, effect: ServiceEffect) -> list[ServiceEvent]:
        match effect:
            case StartIngress():
                self._ingresses.start()
            case StopIngress():
                self._ingresses.drain()
            case StartReplica(number, way):
                self._replicas.start(number, way)
            case DrainReplica(number):
                self._replicas.drain(number)
            case KillReplica(number):
                return self._replicas.kill(number)
            case Route(replicas):
                self._ingresses.route(replicas)
            case TellMove(way, reason):
                return [MoveEnded(way, reason)]
            case End():
                if not self.service.ended and self._stops < 2:
                    self._last_words()
                self._end()
        return []

    def _look(self, now_s: float) -> None:
        """What the clock brings: deadlines, the load, another number of replicas."""
        load = self._ingresses.load(now_s)
        self._record.load = load or Load()
        self._handle([*self._ingresses.overdue(now_s), *map(self._without_place, self._replicas.overdue(now_s, load))])
        if not self.service.stopping:
            self._handle(self._steering.look(self.service, load, now_s))
        if self.service.ended is None:
            self._tell(self._record.status(self.service), at_once=True)

    def _without_place(self, event: ServiceEvent) -> ServiceEvent:
        """A replica that nobody could make room for is not wanted for a while; in a move that is for the service to decide."""
        if not isinstance(event, PlaceWanted) or event.others or self.service.move:
            return event
        room = sum(replica.phase in ("serving", "starting") for replica in self.service.replicas) - 1
        log.warning("%s: no devices for one more replica", self._task.name)
        return self._steering.no_room(room)

    def _note(self, event: ServiceEvent) -> None:
        ended = self.service.ended is not None
        self._record.note(event)
        self._journal.event("ended" if ended else service_state(self.service), event, time.time())
        for observer in self._observers:
            observer.on_event(self.service, event)
        if not ended:
            self._tell(self._record.status(self.service), at_once=True)

    def _tell(self, status: ServiceStatus, at_once: bool) -> None:
        self._journal.status(status, at_once)
        for observer in self._observers:
            observer.on_status(status)

    def _urls(self) -> list[str]:
        addresses = self._ingresses.addresses
        return [f"http://{_reachable(address, node)}" for node, address in sorted(addresses.items())]

    def _last_words(self) -> None:
        self._replicas.leave()
        end_s = time.monotonic() + LAST_WORDS_S
        while self._replicas.left and time.monotonic() < end_s:
            self._listen()

    def _end(self) -> None:
        """Kill all that is left, together, and wait for it."""
        members = [*self._replicas.end(), *self._ingresses.end()]
        for member in members:
            member.wait()

    def _outcome(self) -> tuple[str, str, int]:
        """State, message and exit code."""
        if self.service.ended:
            return "failed", self.service.ended, 1
        if self._stops > 1:
            return "stopped", "stopped before what ran was finished", INTERRUPTED
        return "drained", "", 0


def _reachable(address: str, node: str) -> str:
    """An address as one that can be asked: 0.0.0.0 and :: are all of a machine's."""
    host, _, port = address.rpartition(":")
    if host in ("0.0.0.0", "::"):
        return f"{node or 'localhost'}:{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
