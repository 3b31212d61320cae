"""The replicas of a service: each a Member at a berth, watched until it is gone.

start ──▶ (free devices) ──▶ Member ──serving──▶ ReplicaServing ──drain──▶ Finished ──▶ killed ──Over──▶ ReplicaGone
             │                  │                    └── lost to every ingress for LOST_S ──▶ ReplicaFailed
             │                  └── not serving in time ──▶ ReplicaFailed
             └── none, and none on their way ──▶ PlaceWanted
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rayplane.control.berths import Berths
from rayplane.control.load import Load
from rayplane.control.member import Broken, Finished, Member, Over, Said, Word
from rayplane.control.service_state import PlaceWanted, ReplicaFailed, ReplicaGone, ReplicaServing, ServiceEvent
from rayplane.control.service_task import Ground, ServiceTask
from rayplane.control.way import Way

LOST_S = 5.0
"""Ingresses leave a replica within a second, and may come back to it."""
SLACK_S = 5.0
"""More than it has to finish what runs."""
WELL = frozenset({"live", "leaving"})


@dataclass(slots=True, eq=False)
class _Replica:
    number: int
    way: Way
    member: Member
    serving: bool = False
    broken: bool = False
    lost_since_s: float | None = None
    drained_by_s: float | None = None
    ending: bool = False

    @property
    def stays(self) -> bool:
        """Whether it serves, and goes on to."""
        return self.serving and self.drained_by_s is None and not (self.broken or self.ending)


class Replicas:
    """Members by number. The controller's thread alone uses it."""

    def __init__(self, task: ServiceTask, ground: Ground, tell: Callable[[Member, Word], None]):
        self._task, self._ground, self._tell = task, ground, tell
        self._berths = Berths(task.devices, task.place)
        self._by_number: dict[int, _Replica] = {}
        self._without: deque[tuple[int, Way]] = deque()
        """Those that wait for devices."""

    def owns(self, member: Member) -> bool:
        """Whether it is a replica."""
        return self._find(member) is not None

    def number(self, member: Member) -> int:
        """Of a member that is a replica."""
        return next(r.number for r in self._by_number.values() if r.member is member)

    def start(self, number: int, way: Way) -> None:
        """As soon as there are devices."""
        self._without.append((number, way))
        self._fill()

    def drain(self, number: int) -> None:
        """Finish what runs; ReplicaGone follows."""
        if replica := self._by_number.get(number):
            replica.drained_by_s = time.monotonic() + self._task.drain_s + SLACK_S
            replica.member.send({"type": "drain"})

    def kill(self, number: int) -> list[ServiceEvent]:
        """ReplicaGone follows, at once where there was nothing to kill."""
        if replica := self._by_number.get(number):
            replica.ending = True
            replica.member.end()
            return []
        self._without = deque(waiting for waiting in self._without if waiting[0] != number)
        self._fill()
        return [ReplicaGone(number)]

    def hear(self, member: Member, word: Word) -> list[ServiceEvent]:
        """What follows from a replica's word."""
        replica = self._find(member)
        if replica is None:
            return []
        match word:
            case Said({"type": "serving", "address": str(address)}):
                replica.serving = True
                return [ReplicaServing(replica.number, address)]
            case Broken(reason, user):
                replica.broken = True
                return [ReplicaFailed(replica.number, reason, user)]
            case Finished():
                replica.ending = True
                member.end()
            case Over():
                del self._by_number[replica.number]
                self._berths.give(replica.number, good=not replica.broken)
                self._fill()
                return [ReplicaGone(replica.number)]
        return []

    def overdue(self, now_s: float, load: Load | None) -> list[ServiceEvent]:
        """Those that do not come to serve, are out of reach, or do not finish."""
        events: list[ServiceEvent] = []
        for replica in self._by_number.values():
            if replica.broken:
                continue
            if reason := self._fault(replica, now_s, load):
                replica.broken = True
                events.append(ReplicaFailed(replica.number, reason))
            elif replica.drained_by_s is not None and now_s > replica.drained_by_s:
                replica.member.end()
        return events + self._in_want()

    def _in_want(self) -> list[ServiceEvent]:
        """The first that waits for devices, where none will be free by themselves."""
        if not self._without or not all(replica.stays for replica in self._by_number.values()):
            return []
        number, way = self._without[0]
        others = [r.number for r in self._by_number.values() if r.way != way]
        return [PlaceWanted(number, self._berths.lacking(way, others))]

    @property
    def left(self) -> bool:
        """Whether one of them is not over."""
        return bool(self._by_number)

    def leave(self) -> None:
        """Nothing runs on them any more: those that serve may still say what they have done, the others go."""
        self._without.clear()
        for replica in self._by_number.values():
            if replica.serving and not replica.broken:
                replica.member.send({"type": "drain"})
            else:
                replica.member.end()

    def end(self) -> list[Member]:
        """Kill them; those to wait for."""
        members = [replica.member for replica in self._by_number.values()]
        for member in members:
            member.end()
        return members

    def _fault(self, replica: _Replica, now_s: float, load: Load | None) -> str:
        if not replica.serving:
            late = now_s - replica.member.began_s > self._task.start_timeout_s
            return f"did not come to serve within {self._task.start_timeout_s:g} s" if late else ""
        seen = load.replicas.get(replica.number) if load else None
        if seen is None or seen.state in WELL:
            replica.lost_since_s = None
            return ""
        replica.lost_since_s = now_s if replica.lost_since_s is None else replica.lost_since_s
        if now_s - replica.lost_since_s <= LOST_S:
            return ""
        return f"requests cannot reach it: {seen.reason}" if seen.reason else "requests cannot reach it"

    def _fill(self) -> None:
        while self._without and (berth := self._berths.take(*self._without[0])):
            number, way = self._without.popleft()
            member = Member(self._ground.new_group(), self._task.replica_launch(number, way, berth), self._tell)
            self._by_number[number] = _Replica(number, way, member)
            member.begin()

    def _find(self, member: Member) -> _Replica | None:
        return next((r for r in self._by_number.values() if r.member is member), None)
