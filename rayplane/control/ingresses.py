"""The ingresses of a service: one on each node, all with the same replicas behind them.

start ──▶ Member on each node that has none ──serving──▶ its URL ──traffic, once a second──▶ load
            ▲ route: the replicas, to all                  └─ silent ──▶ IngressFailed
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rayplane.control.load import Load, load_of
from rayplane.control.member import Broken, Finished, Member, Over, Said, Word
from rayplane.control.service_state import IngressDone, IngressFailed, ServiceEvent
from rayplane.control.service_task import Ground, ServiceTask
from rayplane.runtime.group import Message

SILENT_S = 15.0
"""An ingress speaks once a second."""
START_S = 180.0
SLACK_S = 5.0
"""More than it has to finish what runs."""
FRESH_S = 5.0
"""Older figures are none."""


@dataclass(slots=True, eq=False)
class _Ingress:
    node: str
    member: Member
    address: str = ""
    heard_s: float | None = None
    traffic: Message | None = None
    finished: bool = False
    failed: bool = False


class Ingresses:
    """Members by node. The controller's thread alone uses it."""

    def __init__(self, task: ServiceTask, ground: Ground, tell: Callable[[Member, Word], None]):
        self._task, self._ground, self._tell = task, ground, tell
        self._by_node: dict[str, _Ingress] = {}
        self._ports: dict[str, int] = {}
        self._replicas: list[dict[str, str]] = []
        self._drained_by_s: float | None = None

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of those that listen, by node."""
        return {i.node: i.address for i in self._by_node.values() if i.address and not i.failed}

    def start(self) -> None:
        """On every node that has none, or one that failed."""
        for node in self._ground.nodes():
            before = self._by_node.get(node)
            if before and not before.failed:
                continue
            launch = self._task.ingress_launch(node, self._ports.get(node), self._replicas)
            member = Member(self._ground.new_group(), launch, self._tell, before.member if before else None)
            self._by_node[node] = _Ingress(node, member)
            member.begin()

    def route(self, replicas: tuple[tuple[int, str], ...]) -> None:
        """Requests go to these from now on."""
        self._replicas = [{"id": str(number), "address": address} for number, address in replicas]
        self._send({"type": "replicas", "replicas": self._replicas})

    def drain(self) -> None:
        """Finish what runs and end."""
        self._drained_by_s = time.monotonic() + self._task.drain_s + SLACK_S
        self._send({"type": "drain"})

    def hear(self, member: Member, word: Word) -> list[ServiceEvent]:
        """What follows from an ingress' word."""
        ingress = next((i for i in self._by_node.values() if i.member is member), None)
        if ingress is None or ingress.failed:
            return []
        ingress.heard_s = time.monotonic()
        match word:
            case Said({"type": "serving", "address": str(address)}):
                ingress.address = address
                self._ports[ingress.node] = int(address.rpartition(":")[2])
            case Said({"type": "traffic"} as message):
                ingress.traffic = message
            case Broken(reason, user):
                return self._failed(ingress, reason, user)
            case Finished() if self._drained_by_s is not None:
                ingress.finished = True
                return [IngressDone()] if all(i.finished for i in self._by_node.values() if not i.failed) else []
            case Finished() | Over() if not ingress.finished:
                return self._failed(ingress, "ended by itself", False)
        return []

    def overdue(self, now_s: float) -> list[ServiceEvent]:
        """Those that say nothing, or do not end."""
        if self._drained_by_s is not None:
            late = now_s > self._drained_by_s
            return [IngressFailed(f"an ingress did not finish within {self._task.drain_s:g} s")] if late else []
        silent = [i for i in self._by_node.values() if not i.failed and _silent(i, now_s)]
        return [event for i in silent for event in self._failed(i, "says nothing: it hangs, or does not start", False)]

    def load(self, now_s: float) -> Load | None:
        """Of all that spoke lately; None where none did."""
        messages = [i.traffic for i in self._by_node.values() if i.traffic and i.heard_s and now_s - i.heard_s < FRESH_S]
        return load_of(messages) if messages else None

    def end(self) -> list[Member]:
        """Kill them; those to wait for."""
        members = [i.member for i in self._by_node.values()]
        for member in members:
            member.end()
        return members

    def _failed(self, ingress: _Ingress, reason: str, user: bool) -> list[ServiceEvent]:
        ingress.failed, ingress.traffic = True, None
        ingress.member.end()
        name = f"the ingress on {ingress.node}" if ingress.node else "the ingress"
        return [IngressFailed(reason if user else f"{name}: {reason}", user)]

    def _send(self, message: Message) -> None:
        for ingress in self._by_node.values():
            if not ingress.failed:
                ingress.member.send(message)


def _silent(ingress: _Ingress, now_s: float) -> bool:
    if ingress.address and ingress.heard_s is not None:
        return now_s - ingress.heard_s > SILENT_S
    return now_s - ingress.member.began_s > START_S
