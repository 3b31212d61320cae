"""A rank's line to its owner: one JSON object per line, both ways, over an inherited socket.

    owner ──{"type": "host_store"} {"type": "join", …} {"type": "drain"}──▶ reader thread ──▶ expect(types), draining
    owner ──{"type": "recall"}────────────────────────────────────────────▶ reader thread ──▶ recalled, expect raises Recalled
    owner ◀─{"type": "ready"} {"type": "step", …} {"type": "done", …}────── send(message)
    owner ◀─{"type": "parked"}───────────────────────────────────────────── park()

The reader ends the process when the owner's side closes: a rank never outlives its owner. A recall makes it forget what the owner said
before; it ends a process that has not said, by `on_recall`, how it leaves what it is doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]

OWNER_GONE = 70
"""Exit code of a rank whose owner vanished."""


class Recalled(Exception):
    """The owner has ended the attempt; this process may take part in the next."""


class Channel:
    """The rank's end of the line. Any thread may send; messages of one thread arrive in order."""

    def __init__(self, sock: socket.socket, leave: Callable[[], None] | None = None):
        """`leave` as in `on_recall`, for a recall that is waiting already."""
        self._sock = sock
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._draining = threading.Event()
        self._recalled = threading.Event()
        self._left = threading.Event()
        self._leave = leave
        threading.Thread(target=self._read, name="owner-channel", daemon=True).start()

    @classmethod
    def open(cls, fd: int, leave: Callable[[], None] | None = None) -> Channel:
        """Take over the inherited socket `fd`; processes that this one starts do not get it."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd), leave)

    @property
    def draining(self) -> bool:
        """Whether the owner asked to save after the current step and end."""
        return self._draining.is_set()

    @property
    def recalled(self) -> bool:
        """Whether the owner has ended the attempt."""
        return self._recalled.is_set()

    def on_recall(self, leave: Callable[[], None]) -> None:
        """Let the owner recall this rank: `leave`, called by the reader, makes fail whatever the rank is waiting for."""
        self._leave = leave

    def park(self) -> None:
        """Tell the owner, once it has recalled this rank, that nothing of the attempt is left; what it says next is about another."""
        self._left.wait()
        self._left.clear()
        self._recalled.clear()
        self.send({"type": "parked"})

    def send(self, message: Message) -> None:
        """Send one message; it must be JSON. Ends the process when the owner is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            try:
                self._sock.sendall(line)
            except OSError:
                os._exit(OWNER_GONE)

    def expect(self, kinds: str | tuple[str, ...], timeout_s: float | None) -> Message:
        """The first message of one of the types `kinds` not taken yet, waiting for it; other types stay for later.

        Raises TimeoutError, and Recalled.
        """
        wanted = (kinds,) if isinstance(kinds, str) else kinds
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._arrived:
            while True:
                for message in self._inbox:
                    if message.get("type") in wanted:
                        self._inbox.remove(message)
                        return message
                if self.recalled:
                    raise Recalled
                if not self._arrived.wait(None if end_s is None else end_s - time.monotonic()):
                    raise TimeoutError(f"the owner sent no {' or '.join(wanted)} within {timeout_s:g} s")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._sock.makefile("rb"):
                self._take(json.loads(line))
        os._exit(OWNER_GONE)

    def _take(self, message: Message) -> None:
        match message.get("type"):
            case "drain":
                self._draining.set()
            case "recall":
                self._forget()
            case _:
                with self._arrived:
                    self._inbox.append(message)
                    self._arrived.notify_all()

    def _forget(self) -> None:
        """The attempt is over, and so is all that the owner said of it."""
        if self._leave is None:
            os._exit(OWNER_GONE)
        with self._arrived:
            self._inbox.clear()
            self._draining.clear()
            self._recalled.set()
            self._arrived.notify_all()
        self._leave()
        self._left.set()
