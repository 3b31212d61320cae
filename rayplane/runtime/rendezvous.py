"""How the ranks of a launch meet, decided without acting; `Lobby` carries it out for both kinds of group.

every rank: ready ──▶ rank 0: host_store ──▶ rank 0: store ──▶ every rank: join        or, after the deadline: failed
  ▲── parked ranks are ready from the start ◀── parked ◀── recall ◀────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from rayplane.runtime.group import Launch, Message, RankMessage
from rayplane.runtime.process import log_path

Orders = tuple[tuple[int, Message], ...]
"""Messages to ranks: (rank, message)."""

START_TIMEOUT_S = 120.0
"""From spawning to joining: a process start and the entry's imports."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Who has come so far. `addresses`: by rank, the host as its peers reach it; `deadline_s`: on the caller's clock."""

    addresses: tuple[str, ...]
    device: str
    config: Message
    timeout_s: float
    deadline_s: float
    lease: Message | None = None
    log_dir: str = ""
    ready: frozenset[int] = frozenset()
    over: bool = False
    """Every rank has been told to join, or the deadline has passed."""


def opening(meeting: Rendezvous) -> Orders:
    """What to tell rank 0 when all are ready."""
    complete = len(meeting.ready) == len(meeting.addresses)
    return ((0, {"type": "host_store", "address": meeting.addresses[0]}),) if complete else ()


def hear(meeting: Rendezvous, rank: int, message: Message) -> tuple[Rendezvous, Orders, bool]:
    """(the meeting after a rank's message, what to tell whom, whether the message is not about meeting)."""
    match message["type"]:
        case "ready":
            meeting = replace(meeting, ready=meeting.ready | {rank})
            return meeting, opening(meeting), False
        case "store":
            join = {
                "type": "join",
                "host": message["host"],
                "port": message["port"],
                "device": meeting.device,
                "lease": meeting.lease,
                "config": meeting.config,
            }
            orders = tuple(
                (r, {**join, "rank": r, "address": address, "log": log_path(meeting.log_dir, r)})
                for r, address in enumerate(meeting.addresses)
            )
            return replace(meeting, over=True), orders, False
        case _:
            return meeting, (), True


def overdue(meeting: Rendezvous, now_s: float) -> tuple[Rendezvous, RankMessage | None]:
    """(the meeting, the failure to report once when its deadline has passed)."""
    if meeting.over or now_s < meeting.deadline_s:
        return meeting, None
    absent = sorted(set(range(len(meeting.addresses))) - meeting.ready)
    who = (
        f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))} did not get ready" if absent else "rank 0 opened no store"
    )
    message = {"type": "failed", "kind": "rank", "message": f"{who} within {meeting.timeout_s:g} s of the start", "traceback": ""}
    return replace(meeting, over=True), RankMessage(absent[0] if absent else 0, message)


class Lobby:
    """Where messages wait for the group's user; those about meeting are answered here and go no further."""

    def __init__(
        self,
        launch: Launch,
        addresses: tuple[str, ...],
        timeout_s: float,
        fetch: Callable[[float], list[RankMessage]],
        send: Callable[[Orders], None],
        parked: frozenset[int] = frozenset(),
    ):
        """`fetch(timeout_s)` waits for messages of ranks; `send` hands orders to them; `parked` ranks need no start."""
        deadline_s = time.monotonic() + timeout_s
        lease = asdict(launch.lease) if launch.lease else None
        self._meeting = Rendezvous(addresses, launch.device, launch.config, timeout_s, deadline_s, lease, launch.log_dir, parked)
        self._fetch = fetch
        self._send = send
        self._last_words: list[RankMessage] = []
        self._tell(opening(self._meeting))

    def poll(self, timeout_s: float) -> list[RankMessage]:
        """Messages for the user, waiting up to `timeout_s` for the first."""
        end_s = time.monotonic() + timeout_s
        if self._last_words:
            words, self._last_words = self._last_words, []
            return words
        while True:
            until_s = end_s if self._meeting.over else min(end_s, self._meeting.deadline_s)
            out = [m for m in self._fetch(max(0.0, until_s - time.monotonic())) if self._admit(m)]
            self._meeting, late = overdue(self._meeting, time.monotonic())
            out += [late] if late else []
            if out or time.monotonic() >= end_s:
                return out

    def recall(self, ranks: frozenset[int], timeout_s: float) -> frozenset[int]:
        """Tell ranks to leave the attempt; those that have done so in time. What else they say waits for `poll`.

        Ends do not, for they are our doing; but that a node is gone is not.
        """
        end_s = time.monotonic() + timeout_s
        self._meeting = replace(self._meeting, over=True)
        self._tell(tuple((rank, {"type": "recall"}) for rank in sorted(ranks)))
        waiting, parked = set(ranks), set[int]()
        while waiting and (left_s := end_s - time.monotonic()) > 0:
            for item in self._fetch(left_s):
                match item.message["type"]:
                    case "parked":
                        parked.add(item.rank)
                        waiting.discard(item.rank)
                    case "exit" | "lost":
                        parked.discard(item.rank)
                        waiting.discard(item.rank)
                        if item.message.get("kind") == "node":
                            self._last_words.append(item)
                    case "ready" | "store":
                        continue  # of a meeting that is over
                    case _:
                        self._last_words.append(item)
        return frozenset(parked)

    def _admit(self, item: RankMessage) -> bool:
        self._meeting, orders, handed_on = hear(self._meeting, item.rank, item.message)
        self._tell(orders)
        return handed_on

    def _tell(self, orders: Orders) -> None:
        if orders:
            self._send(orders)
