"""All ranks of a job as children of this process: no Ray, one machine.

LocalGroup ── Gang ── rank 0, rank 1, …        rank r has the r-th GPU that this process sees, or the launch's r-th device
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from functools import partial

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
        """Spawn every rank of the layout that has not parked; there is nothing to wait for."""
        if self._gang is None or self._gang.killed:
            self._gang = Gang()
        gang, self._inbox = self._gang, queue.SimpleQueue()
        gpus = dict(enumerate(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))))
        devices = launch.devices or tuple(range(launch.layout.size))
        specs = [rank_spec(launch, rank, gpus.get(device, str(device))) for rank, device in enumerate(devices)]
        parked = gang.start(specs, partial(self._deliver, self._inbox))
        self._lobby = Lobby(launch, (LOOPBACK,) * launch.layout.size, self._start_timeout_s, self._fetch, gang.send, parked)

    def poll(self, timeout_s: float) -> list[RankMessage]:
        """Messages that have come, waiting up to `timeout_s` for the first."""
        assert self._lobby, "poll comes after start"
        return self._lobby.poll(timeout_s)

    def send(self, message: Message) -> None:
        """Hand a message to every rank that lives."""
        if self._gang:
            self._gang.broadcast(message)

    def recall(self, timeout_s: float, gone: frozenset[int] = frozenset()) -> frozenset[int]:
        """End the attempt but not its processes; the ranks that have parked in time."""
        if self._gang is None or self._gang.killed or self._lobby is None:
            return frozenset()
        self._gang.discard(gone)
        parked = self._lobby.recall(self._gang.living, timeout_s)
        self._gang.discard(self._gang.living - parked)
        return parked

    def kill(self) -> None:
        """SIGKILL every rank; on return none is left."""
        if self._gang:
            self._gang.kill()

    def close(self) -> None:
        """Kill; there is no place to give back."""
        self.kill()

    def _deliver(self, inbox: queue.SimpleQueue[RankMessage], item: RankMessage) -> None:
        if self._on_step and item.message["type"] in REPORTS:
            self._on_step(item.message)
        inbox.put(item)

    def _fetch(self, timeout_s: float) -> list[RankMessage]:
        out: list[RankMessage] = []
        try:
            out.append(self._inbox.get(timeout=timeout_s))
            while True:
                out.append(self._inbox.get_nowait())
        except queue.Empty:
            return out
