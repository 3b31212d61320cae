"""A gang is the ranks that one owner process runs: spawned together, watched by one thread, killed together.

    start ──▶ thread: keep what has parked, kill the rest, spawn what is missing ──▶ select: read messages, notice ends
      ▲                                    └──▶ deliver(RankMessage)                       │          kill: reap all ──▶ thread ends
      └──────────────────────── discard: kill and reap some ◀──────────────────────────────┘

The thread that spawns must also be the one that stays: the kernel kills a rank when the thread that spawned it ends.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from rayplane.errors import RayplaneError
from rayplane.runtime.group import Message, RankMessage
from rayplane.runtime.lines import StreamError
from rayplane.runtime.process import REAP_TIMEOUT_S, RankProcess, RankSpec, successors

WATCH_S = 0.1
"""How often processes are looked at when no socket says anything."""
HANG_UP_WATCH_S = 0.01
"""The same while a rank that closed its socket is about to end."""
SPAWN_TIMEOUT_S = 60.0
STOPPED = "was stopped by SIGSTOP"

Deliver = Callable[[RankMessage], None]
Ranks = frozenset[int]


class Gang:
    """Ranks of this process. One thread uses it, but any may `send` and `kill`."""

    def __init__(self) -> None:
        self._ranks: dict[int, RankProcess] = {}
        self._living: dict[int, RankProcess] = {}
        self._frozen: set[int] = set()
        """Ranks of which it has been said that they are stopped."""
        self._deliver: Deliver = _drop
        self._orders: queue.SimpleQueue[tuple[Callable[[], Ranks], Future[Ranks]]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._immortal: list[int] = []
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._thread: threading.Thread | None = None

    @property
    def pids(self) -> dict[int, int]:
        """Process id by rank."""
        return {rank: process.pid for rank, process in self._ranks.copy().items()}

    @property
    def living(self) -> Ranks:
        """Ranks whose process is not known to have ended."""
        return frozenset(self._living.copy())

    @property
    def killed(self) -> bool:
        """Whether it has been killed; it then starts no more."""
        return self._stopping.is_set()

    def start(self, specs: Sequence[RankSpec], deliver: Deliver) -> Ranks:
        """Have a process for every spec, and no other; returns the ranks whose process is one that had parked.

        `deliver` is called from the gang's own thread, with what is said from here on. When a rank cannot be spawned all are killed and
        the error is raised.
        """
        assert not self.killed, "a gang that was killed starts no more"
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gang", daemon=True)
            self._thread.start()
        try:
            return self._order(lambda: self._renew(specs, deliver))
        except TimeoutError:
            self._stopping.set()
            raise RayplaneError(f"{len(specs)} rank processes could not be spawned within {SPAWN_TIMEOUT_S:g} s") from None
        except (OSError, ValueError) as error:
            self.kill()
            raise RayplaneError(f"a rank process could not be spawned: {error}") from error

    def send(self, orders: Iterable[tuple[int, Message]]) -> None:
        """Hand each message to its rank, if it is there."""
        for rank, message in orders:
            if process := self._ranks.get(rank):
                process.send(message)

    def broadcast(self, message: Message) -> None:
        """Hand a message to every rank that lives."""
        self.send((rank, message) for rank in self._ranks.copy())

    def discard(self, ranks: Ranks) -> None:
        """SIGKILL and reap some ranks; nothing more is delivered of them. What does not die is named by `start` and `kill`."""
        if ranks & self.pids.keys() and not self.killed:
            self._order(lambda: self._discard(ranks))

    def kill(self) -> None:
        """SIGKILL and reap every rank; nothing is delivered from here on. May be called twice."""
        self._stopping.set()
        for process in self._ranks.copy().values():
            process.kill()
        if self._thread:
            self._ring()
            self._thread.join(2 * REAP_TIMEOUT_S)
            if self._thread.is_alive() or self._immortal:
                stuck = ", ".join(map(str, self._immortal or self._ranks))
                raise RayplaneError(f"ranks {stuck} do not die on SIGKILL: their processes are blocked in the kernel")

    def _order(self, order: Callable[[], Ranks]) -> Ranks:
        """Have the gang's thread do something."""
        done: Future[Ranks] = Future()
        self._orders.put((order, done))
        self._ring()
        return done.result(SPAWN_TIMEOUT_S)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"!")

    def _run(self) -> None:
        with self._selector, self._bell, self._ear:
            self._ear.setblocking(False)
            self._selector.register(self._ear, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self._watch()
            for process in self._ranks.values():
                process.kill()
            self._immortal += [rank for rank, process in self._ranks.items() if not process.close()]
            self._obey()

    def _obey(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                order, done = self._orders.get_nowait()
                try:
                    if self._stopping.is_set():
                        raise RayplaneError("the ranks are being killed")
                    done.set_result(order())
                except Exception as error:
                    done.set_exception(error)

    def _renew(self, specs: Sequence[RankSpec], deliver: Deliver) -> Ranks:
        parked = {rank: process.spec for rank, process in self._living.items() if process.parked and process.ended() is None}
        own = successors(parked, specs)
        self._discard(frozenset(self._ranks) - frozenset(own.values()))
        if self._immortal:
            raise OSError(f"ranks {', '.join(map(str, self._immortal))} before it do not die")
        self._deliver = deliver
        self._ranks = {rank: self._ranks[before] for rank, before in own.items()}
        self._living, self._frozen = dict(self._ranks), set()
        for spec in specs:
            if spec.rank in own:
                self._ranks[spec.rank].rejoin(spec)
            else:
                process = self._ranks[spec.rank] = self._living[spec.rank] = RankProcess(spec)
                self._selector.register(process, selectors.EVENT_READ, process)
        return frozenset(own)

    def _discard(self, ranks: Ranks) -> Ranks:
        going = {rank: self._ranks.pop(rank) for rank in ranks & self._ranks.keys()}
        for process in going.values():
            process.kill()
        for rank, process in going.items():
            self._living.pop(rank, None)
            self._ignore(process)
            if not process.close():
                self._immortal.append(rank)
        return frozenset(going)

    def _watch(self) -> None:
        """One look: at the sockets as soon as one says something, then at the processes."""
        hanging_up = any(process.hung_up for process in self._living.values())
        for key, _ in self._selector.select(HANG_UP_WATCH_S if hanging_up else WATCH_S if self._living else None):
            if key.fileobj is self._ear:
                self._ear.recv(1024)
            else:
                self._read(key.data)
        for rank, process in list(self._living.items()):
            if ended := process.ended():
                while not process.hung_up:
                    self._read(process)
                del self._living[rank]
                self._report(rank, ended)
            elif rank not in self._frozen and process.stopped(time.monotonic()):
                self._frozen.add(rank)
                self._report(rank, {"type": "failed", "kind": "rank", "message": STOPPED, "traceback": ""})
            if process.hung_up:
                self._ignore(process)
        self._obey()

    def _ignore(self, process: RankProcess) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(process)

    def _read(self, process: RankProcess) -> None:
        try:
            messages = process.read()
        except StreamError as error:
            messages = [{"type": "failed", "kind": "rank", "message": f"rank {process.rank} sent {error}", "traceback": ""}]
            process.hung_up = True
            process.kill()
        for message in messages:
            process.parked |= message["type"] == "parked"
            self._report(process.rank, message)

    def _report(self, rank: int, message: Message) -> None:
        if not self._stopping.is_set():
            self._deliver(RankMessage(rank, message))


def _drop(item: RankMessage) -> None:
    """Before the first start nobody speaks."""
