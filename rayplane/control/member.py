"""One group of a service's ranks, a replica or an ingress, with a thread of its own that alone uses it.

begin ──▶ (after: the one whose port or devices it needs is over) ─▶ group.start ─▶ poll … poll ─▶ group.close ──▶ Over
                                                    │                     ├─▶ Said: what is for the service
                                                    └─▶ Broken ◀──────────┘     Finished: all ranks have done their work
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rayplane.control.attempt import Attempt
from rayplane.control.event import GangDone, RankExited, RankFailed, RankLost
from rayplane.control.failure import explain, failure_of
from rayplane.control.machine import GATHER_S
from rayplane.control.state import Failure
from rayplane.errors import PlacementError, RayplaneError
from rayplane.runtime.group import Launch, Message, WorkerGroup
from rayplane.runtime.patience import GaveUp

POLL_S = 0.05
"""How long a message to the ranks may wait."""
FOR_THE_SERVICE = frozenset({"serving", "traffic", "served"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a rank."""

    message: Message


@dataclass(frozen=True, slots=True)
class Broken:
    """It cannot go on, and its ranks are about to be killed."""

    reason: str
    user: bool = False
    """Trying again would fail again."""
    placed: bool = True
    """False where the cluster had no place for it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All of its ranks have done their work."""


@dataclass(frozen=True, slots=True)
class Over:
    """None of its ranks is left, and its places are given back. Always the last word."""


Word = Said | Broken | Finished | Over


class Member:
    """Owned by one thread; `tell` is called from the member's own."""

    def __init__(self, group: WorkerGroup, launch: Launch, tell: Callable[[Member, Word], None], after: Member | None = None):
        self.launch = launch
        self.began_s = time.monotonic()
        self._group, self._tell, self._after = group, tell, after
        self._orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=launch.name, daemon=True)

    def begin(self) -> None:
        """Start the ranks."""
        self._thread.start()

    def send(self, message: Message) -> None:
        """Hand a message to every rank, soon."""
        self._orders.put(message)

    def end(self) -> None:
        """Kill the ranks, soon; Over follows."""
        self._leaving.set()

    def wait(self) -> None:
        """Until it is over."""
        self._thread.join()

    def _run(self) -> None:
        try:
            if self._after:
                self._after.wait()
            self._work()
        except GaveUp:
            pass
        except PlacementError as error:
            self._tell(self, Broken(str(error), placed=False))
        except RayplaneError as error:
            self._tell(self, Broken(str(error)))
        except Exception as error:
            log.exception("%s", self.launch.name)
            self._tell(self, Broken(f"its owner failed: {error!r}"))
        finally:
            self._close()
            self._tell(self, Over())

    def _work(self) -> None:
        """Until it is told to end, or is broken."""
        if self._leaving.is_set():
            return
        self._group.start(self.launch, self._leaving.is_set)
        self.began_s = time.monotonic()
        attempt, failures = Attempt(self.launch.layout.size, self.began_s), list[Failure]()
        while not (self._leaving.is_set() or failures):
            failures = self._listen(attempt, POLL_S)
            while not self._orders.empty():
                self._group.send(self._orders.get())
        if failures:
            failures += self._last_words(attempt, failures)
            self._tell(self, Broken(explain(failures), any(f.kind == "user" for f in failures)))

    def _last_words(self, attempt: Attempt, failures: list[Failure]) -> list[Failure]:
        """Where only lost connections have been heard of: what caused them."""
        end_s, more = time.monotonic() + GATHER_S, list[Failure]()
        while all(f.consequence for f in (*failures, *more)) and (left_s := end_s - time.monotonic()) > 0:
            more += self._listen(attempt, left_s)
        known = {rank for failure in failures for rank in failure.ranks}
        return [failure for failure in more if not known.issuperset(failure.ranks)]

    def _listen(self, attempt: Attempt, timeout_s: float) -> list[Failure]:
        failures: list[Failure] = []
        for item in self._group.poll(timeout_s):
            if item.message["type"] in FOR_THE_SERVICE:
                self._tell(self, Said(item.message))
                continue
            for event in attempt.fold(item, time.monotonic()):
                match event:
                    case GangDone():
                        self._tell(self, Finished())
                    case RankFailed() | RankExited() | RankLost() if not any(event.rank in f.ranks for f in failures):
                        failures.append(failure_of(event))
        return failures

    def _close(self) -> None:
        try:
            self._group.close()
        except RayplaneError as error:
            log.warning("%s: %s", self.launch.name, error)
