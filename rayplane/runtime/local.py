"""All ranks of a job as children of this process: no Ray, one machine.

LocalGroup ── Gang ── rank 0, rank 1, …        rank r has the r-th GPU that this process sees, counted from the launch's first
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable

from rayplane.runtime.gang import Gang
from rayplane.runtime.group import REPORTS, Launch, Message, RankMessage
from rayplane.runtime.patience import never
from rayplane.runtime.process import rank_spec
from rayplane.runtime.rendezvous import START_TIMEOUT_S, Lobby

LOOPBACK = "127.0.0.1"


class LocalGroup:
    """A WorkerGroup on this machine."""

    def __init__(self, start_timeout_s: float = START_TIMEOUT_S, on_step: Callable[[Message], None] | None = None):
        """`on_step` is called with every rank's messages of REPORTS, from the group's own thread: for an exporter in this process."""
        self._on_step = on_step
        self._start_timeout_s = start_timeout_s
        self._gang: Gang | None = None
        self._lobby: Lobby | None = None
        self._inbox: queue.SimpleQueue[RankMessage] = queue.SimpleQueue()

    @property
    def pids(self) -> dict[int, int]:
        """Process id by rank, of the last start."""
        return self._gang.pids if self._gang else {}

    def start(self, launch: Launch, give_up: Callable[[], bool] = never) -> None:
        """Spawn every rank of the layout; there is nothing to wait for."""
        self.kill()
        self._inbox = queue.SimpleQueue()
        self._gang = gang = Gang(self._deliver)
        gpus = dict(enumerate(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
        self._lobby = Lobby(launch, (LOOPBACK,) * launch.layout.size, self._start_timeout_s, self._fetch, gang.send)
        first = launch.first_device
        gang.start([rank_spec(launch, rank, gpus.get(first + rank, str(first + rank))) for rank in range(launch.layout.size)])

    def poll(self, timeout_s: float) -> list[RankMessage]:
        """Messages that have come, waiting up to `timeout_s` for the first."""
        assert self._lobby, "poll comes after start"
        return self._lobby.poll(timeout_s)

    def send(self, message: Message) -> None:
        """Hand a message to every rank that lives."""
        if self._gang:
            self._gang.broadcast(message)

    def kill(self) -> None:
        """SIGKILL every rank; on return none is left."""
        if self._gang:
            self._gang.kill()

    def close(self) -> None:
        """Kill; there is no place to give back."""
        self.kill()

    def _deliver(self, item: RankMessage) -> None:
        if self._on_step and item.message["type"] in REPORTS:
            self._on_step(item.message)
        self._inbox.put(item)

    def _fetch(self, timeout_s: float) -> list[RankMessage]:
        out: list[RankMessage] = []
        try:
            out.append(self._inbox.get(timeout=timeout_s))
            while True:
                out.append(self._inbox.get_nowait())
        except queue.Empty:
            return out
