"""A gang is the ranks that one owner process runs: spawned together, watched by one thread, killed together.

    start ──▶ thread: spawn all │ select: read messages, notice ends │ killed: reap all ──▶ thread ends
                                   └──▶ deliver(RankMessage)

The thread that spawns must also be the one that stays: the kernel kills a rank when the thread that spawned it ends.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
from collections.abc import Callable, Iterable, Sequence

from rayplane.errors import RayplaneError
from rayplane.runtime.group import Message, RankMessage
from rayplane.runtime.lines import StreamError
from rayplane.runtime.process import REAP_TIMEOUT_S, RankProcess, RankSpec

WATCH_S = 0.1
"""How often processes are looked at when no socket says anything."""
HANG_UP_WATCH_S = 0.01
"""The same while a rank that closed its socket is about to end."""
SPAWN_TIMEOUT_S = 60.0


class Gang:
    """Ranks of this process. `deliver` is called from the gang's own thread."""

    def __init__(self, deliver: Callable[[RankMessage], None]):
        self._deliver = deliver
        self._ranks: dict[int, RankProcess] = {}
        self._stopping = threading.Event()
        self._spawned = threading.Event()
        self._error: Exception | None = None
        self._immortal: list[int] = []
        self._thread: threading.Thread | None = None

    @property
    def pids(self) -> dict[int, int]:
        """Process id by rank."""
        return {rank: process.pid for rank, process in self._ranks.items()}

    def start(self, specs: Sequence[RankSpec]) -> None:
        """Spawn every rank, once in a gang's life; when one cannot be spawned the others are killed and the error is raised."""
        assert self._thread is None, "a gang starts once"
        self._thread = threading.Thread(target=self._run, args=(specs,), name="gang", daemon=True)
        self._thread.start()
        if not self._spawned.wait(SPAWN_TIMEOUT_S):
            self._stopping.set()
            raise RayplaneError(f"{len(specs)} rank processes could not be spawned within {SPAWN_TIMEOUT_S:g} s")
        if self._error:
            self.kill()
            raise RayplaneError(f"a rank process could not be spawned: {self._error}") from self._error

    def send(self, orders: Iterable[tuple[int, Message]]) -> None:
        """Hand each message to its rank."""
        for rank, message in orders:
            self._ranks[rank].send(message)

    def broadcast(self, message: Message) -> None:
        """Hand a message to every rank that lives."""
        self.send((rank, message) for rank in self._ranks)

    def kill(self) -> None:
        """SIGKILL and reap every rank; nothing is delivered from here on. May be called twice."""
        self._stopping.set()
        for process in self._ranks.values():
            process.kill()
        if self._thread:
            self._thread.join(2 * REAP_TIMEOUT_S)
            if self._thread.is_alive() or self._immortal:
                stuck = ", ".join(map(str, self._immortal or self._ranks))
                raise RayplaneError(f"ranks {stuck} do not die on SIGKILL: their processes are blocked in the kernel")

    def _run(self, specs: Sequence[RankSpec]) -> None:
        with selectors.DefaultSelector() as selector:
            try:
                for spec in specs:
                    process = self._ranks[spec.rank] = RankProcess(spec)
                    selector.register(process, selectors.EVENT_READ, process)
            except (OSError, ValueError) as error:
                self._error = error
                self._stopping.set()
            self._spawned.set()
            self._watch(selector)
        for process in self._ranks.values():
            process.kill()
        self._immortal = [rank for rank, process in self._ranks.items() if not process.close()]

    def _watch(self, selector: selectors.BaseSelector) -> None:
        living = dict(self._ranks)
        while living and not self._stopping.is_set():
            hanging_up = any(process.hung_up for process in living.values())
            for key, _ in selector.select(HANG_UP_WATCH_S if hanging_up else WATCH_S):
                self._read(key.data)
            for rank, process in list(living.items()):
                if ended := process.ended():
                    while not process.hung_up:
                        self._read(process)
                    del living[rank]
                    self._report(rank, ended)
                if process.hung_up:
                    with contextlib.suppress(KeyError):
                        selector.unregister(process)

    def _read(self, process: RankProcess) -> None:
        try:
            messages = process.read()
        except StreamError as error:
            messages = [{"type": "failed", "kind": "rank", "message": f"rank {process.rank} sent {error}", "traceback": ""}]
            process.hung_up = True
            process.kill()
        for message in messages:
            self._report(process.rank, message)

    def _report(self, rank: int, message: Message) -> None:
        if not self._stopping.is_set():
            self._deliver(RankMessage(rank, message))
