"""One connection to an engine.

connect ──Hello──▶ … ◀──Welcome── Submit, Cancel ⇄ Tokens, Pulse … ──▶ lost: it closed, broke, or was abandoned
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from rayplane.serve.frames import TO_INGRESS, FrameError, FrameReader, encode
from rayplane.serve.wire import Frame, Hello

UNIX = "unix:"


class Listener(Protocol):
    """Whom a link reports to."""

    def heard(self, link: Link, frame: Frame) -> None:
        """A frame has come."""

    def lost(self, link: Link, reason: str) -> None:
        """Nothing more will come; told once."""


class Link(asyncio.Protocol):
    """The ingress' end. It is over when `lost` is told, and never used again."""

    def __init__(self, replica: str, hello: Hello, listener: Listener):
        self.replica = replica
        self.closed = asyncio.Event()
        self.proved = False
        """Whether the engine was well at some time."""
        self._hello, self._listener = hello, listener
        self._reader = FrameReader(TO_INGRESS)
        self._transport: asyncio.Transport | None = None
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce the ingress."""
        self._transport = cast("asyncio.Transport", transport)
        if self._over:  # it was abandoned while it was being made
            self._transport.abort()
        self.send(self._hello)

    def data_received(self, data: bytes) -> None:
        """Hand on whole frames; whoever sends anything else is left."""
        try:
            for frame in self._reader.feed(data):
                if self._over:
                    return
                self._listener.heard(self, frame)
        except FrameError as error:
            self.abandon(f"it sent {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has closed, or broken off."""
        self._end(f"the connection broke ({exc})" if exc else "it closed the connection")

    def send(self, frame: Frame) -> None:
        """Hand over a frame; nothing happens when the link is over."""
        if self._transport and not self._over:
            self._transport.write(encode(frame))

    def abandon(self, reason: str) -> None:
        """Break off at once."""
        if self._transport:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self.closed.set()
            self._listener.lost(self, reason)


async def connect(link: Link, address: str) -> None:
    """Connect a link. Raises OSError."""
    loop = asyncio.get_running_loop()
    if address.startswith(UNIX):
        await loop.create_unix_connection(lambda: link, address.removeprefix(UNIX))
        return
    host, _, port = address.rpartition(":")
    await loop.create_connection(lambda: link, host, int(port))
