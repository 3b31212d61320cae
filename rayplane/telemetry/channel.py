"""A rank's line to its owner: one JSON object per line, both ways, over an inherited socket.

    owner ──{"type": "host_store"} {"type": "join", …} {"type": "drain"}──▶ reader thread ──▶ expect(types), draining
    owner ◀─{"type": "ready"} {"type": "step", …} {"type": "done", …}────── send(message)

The reader ends the process when the owner's side closes: a rank never outlives its owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from typing import Any

Message = dict[str, Any]

OWNER_GONE = 70
"""Exit code of a rank whose owner vanished."""


class Channel:
    """The rank's end of the line. Any thread may send; messages of one thread arrive in order."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._inbox: deque[Message] = deque()
        self._draining = threading.Event()
        threading.Thread(target=self._read, name="owner-channel", daemon=True).start()

    @classmethod
    def open(cls, fd: int) -> Channel:
        """Take over the inherited socket `fd`; processes that this one starts do not get it."""
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd))

    @property
    def draining(self) -> bool:
        """Whether the owner asked to save after the current step and end."""
        return self._draining.is_set()

    def send(self, message: Message) -> None:
        """Send one message; it must be JSON. Ends the process when the owner is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._sending:
            try:
                self._sock.sendall(line)
            except OSError:
                os._exit(OWNER_GONE)

    def expect(self, kinds: str | tuple[str, ...], timeout_s: float) -> Message:
        """The first message of one of the types `kinds` not taken yet, waiting for it; other types stay for later.

        Raises TimeoutError.
        """
        wanted = (kinds,) if isinstance(kinds, str) else kinds
        end_s = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                for message in self._inbox:
                    if message.get("type") in wanted:
                        self._inbox.remove(message)
                        return message
                if not self._arrived.wait(end_s - time.monotonic()):
                    raise TimeoutError(f"the owner sent no {' or '.join(wanted)} within {timeout_s:g} s")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._sock.makefile("rb"):
                message = json.loads(line)
                if message.get("type") == "drain":
                    self._draining.set()
                    continue
                with self._arrived:
                    self._inbox.append(message)
                    self._arrived.notify_all()
        os._exit(OWNER_GONE)
