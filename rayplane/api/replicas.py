"""The replicas, seen from an ingress: who is listed, connected, and well.

connecting ──Welcome, Pulse──▶ live ──Leave, or no longer listed──▶ leaving ──its last flight has ended──▶ gone
     ▲                           │
     └─────────lost◀─────────────┘    silent, stuck, broken: it is tried again while it is listed

One that hangs may still say Welcome; it gets requests only once a pulse shows that it is well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rayplane.api.config import ReplicaAddress
from rayplane.api.flight import Flight
from rayplane.api.health import fault
from rayplane.api.link import Link, connect
from rayplane.serve.wire import Frame, Hello, Leave, Pulse, Welcome

CHECK_S = 0.05
CONNECT_S = 3.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 1.0
"""Between attempts to connect."""

State = Literal["connecting", "live", "leaving", "lost"]
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Replica:
    """What is known of one."""

    place: ReplicaAddress
    listed: bool = True
    keeper: asyncio.Task[None] | None = None
    state: State = "connecting"
    reason: str = ""
    """Why it cannot be reached, or was lost."""
    link: Link | None = None
    welcome: Welcome | None = None
    pulse: Pulse | None = None
    heard_at: float = 0.0
    flights: dict[int, Flight] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its name."""
        return self.place.id


class Crew(Protocol):
    """Whom the roster reports to."""

    def joined(self, replica: Replica, welcome: Welcome) -> None:
        """It takes requests."""

    def left(self, replica: Replica) -> None:
        """It takes no new requests."""

    def lost(self, replica: Replica) -> None:
        """It is gone, and what it had with it."""

    def frame(self, replica: Replica, frame: Frame) -> None:
        """It has sent a frame about requests."""


class Roster:
    """Connects to all listed replicas and watches them. All of it runs in one event loop."""

    def __init__(self, hello: Hello, stall_s: float, crew: Crew):
        self._hello, self._stall_s, self._crew = hello, stall_s, crew
        self._loop = asyncio.get_running_loop()
        self._replicas: dict[str, Replica] = {}
        self._watching = self._loop.create_task(self._watch())

    def replicas(self) -> Sequence[Replica]:
        """All that are listed, or not gone yet."""
        return tuple(self._replicas.values())

    def get(self, name: str) -> Replica | None:
        """The replica of that name."""
        return self._replicas.get(name)

    def set(self, places: Iterable[ReplicaAddress]) -> None:
        """From now on these are listed; others finish what they have."""
        wanted = {place.id: place for place in places}
        for replica in self.replicas():
            if wanted.get(replica.id) == replica.place and replica.listed:
                del wanted[replica.id]
            elif replica.id in wanted:
                self._drop(replica, "it is listed anew")
            else:
                self._retire(replica)
        for place in wanted.values():
            replica = self._replicas[place.id] = Replica(place)
            replica.keeper = self._loop.create_task(self._keep(replica))

    def landed(self, replica: Replica) -> None:
        """A flight of this replica has ended; one that is no longer listed is left after its last."""
        if not replica.listed and not replica.flights:
            self._drop(replica, "it has finished")

    def close(self) -> None:
        """Leave all replicas."""
        self._watching.cancel()
        for replica in self.replicas():
            if replica.link:
                replica.link.send(Leave())
            self._drop(replica, "the ingress stops")

    def heard(self, link: Link, frame: Frame) -> None:
        """A frame has come from a replica."""
        replica = self._replicas[link.replica]
        replica.heard_at = self._loop.time()
        match frame:
            case Welcome(replica=name) if name != replica.id:
                link.abandon(f"it is replica {name}")
            case Welcome():
                replica.welcome = frame
            case _ if replica.welcome is None:
                link.abandon("it sent something before its Welcome")
            case Pulse():
                self._pulse(link, replica, frame)
            case Leave():
                replica.state = "leaving"
                self._crew.left(replica)
            case _:
                self._crew.frame(replica, frame)

    def _pulse(self, link: Link, replica: Replica, pulse: Pulse) -> None:
        replica.pulse = pulse
        if reason := fault(0.0, True, pulse, self._stall_s):
            link.abandon(reason)
        elif replica.state in ("connecting", "lost") and replica.welcome:
            replica.state, replica.reason, link.proved = "live", "", True
            log.info("replica %s is live", replica.id)
            self._crew.joined(replica, replica.welcome)

    def lost(self, link: Link, reason: str) -> None:
        """A replica's connection is over."""
        replica = self._replicas.get(link.replica)
        if replica is None or replica.link is not link:
            return
        if replica.flights or (replica.listed and replica.state == "live"):
            log.warning("replica %s is lost with %d requests: %s", link.replica, len(replica.flights), reason)
        replica.state, replica.reason = "lost", reason
        replica.link = replica.welcome = replica.pulse = None
        self._crew.lost(replica)
        if not replica.listed:
            self._replicas.pop(replica.id, None)

    def _retire(self, replica: Replica) -> None:
        """It gets nothing new, and is left when it has finished."""
        replica.listed = False
        self._crew.left(replica)
        if replica.state == "live":
            replica.state = "leaving"
        if not replica.flights:
            self._drop(replica, "it is no longer listed")

    def _drop(self, replica: Replica, reason: str) -> None:
        replica.listed = False
        if replica.keeper:
            replica.keeper.cancel()
        if replica.link:
            replica.link.abandon(reason)
        if self._replicas.get(replica.id) is replica:
            del self._replicas[replica.id]

    async def _keep(self, replica: Replica) -> None:
        """Connect to a replica, again and again, while it is listed."""
        pause_s = FIRST_PAUSE_S
        while replica.listed:
            link = replica.link = Link(replica.id, self._hello, self)
            replica.heard_at = self._loop.time()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await connect(link, replica.place.address)
            except (OSError, ValueError) as error:
                replica.link, replica.reason = None, f"it cannot be reached ({error})"
            else:
                await link.closed.wait()
                pause_s = FIRST_PAUSE_S if link.proved else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(LAST_PAUSE_S, 2 * pause_s)

    async def _watch(self) -> None:
        before = self._loop.time()
        while True:
            await asyncio.sleep(CHECK_S)
            now = self._loop.time()
            late_s, before = now - before - CHECK_S, now
            for replica in self.replicas():
                if replica.link:
                    replica.heard_at += late_s  # while this process slept, it could hear nobody
                    silent_s = now - replica.heard_at
                    if reason := fault(silent_s, replica.welcome is not None, replica.pulse, self._stall_s):
                        replica.link.abandon(reason)
