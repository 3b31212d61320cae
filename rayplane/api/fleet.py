"""Flights on replicas: each is placed on one, and goes on elsewhere when that is lost.

launch ──▶ placed ──▶ tokens ──▶ finished            no replica: unplaced until there is one, or no_replica_s is over
             ▲          │
             └──lost────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rayplane.api.config import ReplicaAddress
from rayplane.api.errors import ApiError
from rayplane.api.flight import Flight
from rayplane.api.replicas import Replica, Roster
from rayplane.api.router import Capacity, Router
from rayplane.serve.request import FinishReason
from rayplane.serve.wire import Cancel, Frame, Hello, Progress, Refused, Tokens, Welcome

MAX_MOVES = 4
"""A request that was on so many replicas when they were lost may be the reason, and is given up."""
RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How an ingress deals with replicas."""

    hello: Hello
    stall_s: float
    max_queue: int
    no_replica_s: float


class Fleet:
    """Sends flights to replicas and brings back what comes. All of it runs in one event loop."""

    def __init__(self, settings: FleetSettings, router: Router):
        self._settings, self._router = settings, router
        self._loop = asyncio.get_running_loop()
        self._roster = Roster(settings.hello, settings.stall_s, self)
        self._unplaced: dict[Flight, asyncio.TimerHandle] = {}
        self._numbers = 0
        self.closing = False
        """New requests are refused."""
        self.moved = 0
        """How often a flight went on elsewhere."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """All that are listed, or not gone yet."""
        return self._roster.replicas()

    @property
    def unplaced(self) -> int:
        """Flights that wait for a replica."""
        return len(self._unplaced)

    @property
    def in_flight(self) -> int:
        """Flights that have not ended."""
        return self.unplaced + sum(len(replica.flights) for replica in self.replicas)

    @property
    def live(self) -> bool:
        """Whether a replica takes requests."""
        return any(replica.state == "live" for replica in self.replicas)

    def set_replicas(self, places: Iterable[ReplicaAddress]) -> None:
        """From now on these are the replicas; others finish what they have."""
        self._roster.set(places)

    def admit(self, count: int) -> None:
        """Whether so many new flights may come: ApiError 503 or 429 where not."""
        if self.closing:
            raise ApiError(503, "the service is stopping; try again", code="draining", retry_after_s=RETRY_AFTER_S)
        if count > self._router.room() - self.unplaced + self._settings.max_queue:
            message = f"the queue is full: {self._settings.max_queue} requests may wait; try again later"
            raise ApiError(429, message, code="queue_full", retry_after_s=RETRY_AFTER_S)

    def launch(self, flight: Flight) -> None:
        """Send a flight to a replica, or keep it until there is one."""
        name = self._router.choose(flight.ask)
        if name is None:
            self._unplaced[flight] = self._loop.call_later(self._settings.no_replica_s, self._give_up, flight)
            return
        replica = self._roster.get(name)
        assert replica and replica.link, "the router knows only replicas that are connected"
        self._numbers += 1
        flight.number, flight.replica = self._numbers, name
        replica.flights[flight.number] = flight
        self._router.start(name, flight.number, flight.ask)
        replica.link.send(flight.submit(self._loop.time()))
        flight.sink.placed(name)

    def cancel(self, flight: Flight) -> None:
        """Nobody waits for it any more; its replica is told at once. May be called twice, and after its end."""
        if flight.over:
            return
        flight.over = True
        if timer := self._unplaced.pop(flight, None):
            timer.cancel()
            return
        replica = self._roster.get(flight.replica)
        if replica and replica.link and flight.number in replica.flights:
            replica.link.send(Cancel(flight.number))
            self._land(replica, flight, cut_short=True)

    def close(self) -> None:
        """Leave all replicas; what has not ended fails."""
        self.closing = True
        for flight in [*self._unplaced, *(f for replica in self.replicas for f in replica.flights.values())]:
            self.cancel(flight)
            flight.sink.failed(ApiError(503, "the service has stopped; try again", code="draining", retry_after_s=RETRY_AFTER_S))
        self._roster.close()

    def joined(self, replica: Replica, welcome: Welcome) -> None:
        """A replica is there: what waited for one goes to it."""
        self._router.join(replica.id, Capacity(welcome.block, welcome.kv_tokens, welcome.max_sequences))
        waiting, self._unplaced = self._unplaced, {}
        for flight, timer in waiting.items():
            timer.cancel()
            self.launch(flight)

    def left(self, replica: Replica) -> None:
        """A replica gets nothing new."""
        self._router.close(replica.id)

    def lost(self, replica: Replica) -> None:
        """What a replica had goes on elsewhere."""
        self._router.leave(replica.id)
        stranded, replica.flights = list(replica.flights.values()), {}
        for flight in stranded:
            self._move(flight)

    def frame(self, replica: Replica, frame: Frame) -> None:
        """A replica has news of its flights."""
        match frame:
            case Tokens():
                for started in frame.started:
                    if flight := replica.flights.get(started.id):
                        flight.sink.started(started.cached, started.queued_s)
                for progress in frame.progress:
                    # One that was cancelled while its tokens were on their way is no longer there.
                    if flight := replica.flights.get(progress.id):
                        self._progress(replica, flight, progress)
            case Refused(id=number, message=message, field=field):
                if flight := replica.flights.get(number):
                    flight.over = True
                    self._land(replica, flight, cut_short=True)
                    flight.sink.failed(ApiError(400, message, field or None))

    def _progress(self, replica: Replica, flight: Flight, progress: Progress) -> None:
        if progress.tokens:
            flight.generated.extend(progress.tokens)
            self._router.progress(replica.id, flight.number, len(progress.tokens))
        if progress.finish is FinishReason.ABORT:  # the replica gives it up, not we
            self._land(replica, flight, cut_short=True)
            flight.sink.progress(progress._replace(finish=None))
            if not flight.over:
                self._move(flight)
            return
        if progress.finish:
            flight.over = True
            self._land(replica, flight, cut_short=False)
        flight.sink.progress(progress)

    def _land(self, replica: Replica, flight: Flight, cut_short: bool) -> None:
        """The flight has left the replica."""
        del replica.flights[flight.number]
        output = None if cut_short else len(flight.generated)
        self._router.finish(replica.id, flight.number, (*flight.prompt, *flight.generated), flight.salt, output)
        self._loop.call_soon(self._roster.landed, replica)

    def _move(self, flight: Flight) -> None:
        flight.moves += 1
        self.moved += 1
        if flight.moves >= MAX_MOVES:
            flight.over = True
            flight.sink.failed(ApiError(503, f"the request was on {flight.moves} replicas when they were lost; it is not tried again"))
            return
        self.launch(flight)

    def _give_up(self, flight: Flight) -> None:
        del self._unplaced[flight]
        flight.over = True
        message = f"no replica was there for {self._settings.no_replica_s:g} s; try again"
        flight.sink.failed(ApiError(503, message, code="no_replica", retry_after_s=RETRY_AFTER_S))
