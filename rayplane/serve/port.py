"""Where ingresses reach an engine: a thread of its own for sockets, so that a step never waits for the network.

ingress ⇄ connection ─▶ inbox ─▶ engine's thread        every frame wakes the engine, which may be asleep in select(2)
                     ◀─ send  ─◀
                     ◀─ Pulse every PULSE_S, with the age of the oldest step as it is then
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from rayplane.errors import RayplaneError
from rayplane.serve.engine import Letters
from rayplane.serve.frames import TO_ENGINE, FrameError, FrameReader, encode
from rayplane.serve.wire import PULSE_S, Frame, Hello, Leave, Pulse, Welcome, admits

log = logging.getLogger(__name__)
T = TypeVar("T")

OPEN_S = 10.0
Arrival = tuple[int, Frame | None]
"""(connection, what it sent; None: it is closed)."""


class Port:
    """Listens from its making on. `welcome` is what ingresses are told of this replica."""

    def __init__(self, host: str, secret: str, welcome: Welcome):
        self.wake, self._waker = os.pipe()
        os.set_blocking(self.wake, False)
        self._inbox: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._secret, self._welcome = secret, welcome
        self._connections: dict[int, _Connection] = {}
        self._count = 0
        self._beating: asyncio.Task[None] | None = None
        self._standing: tuple[Pulse, float | None] | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="port", daemon=True).start()
        self._server = self._do(self._open(host)).result(OPEN_S)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def arrivals(self) -> list[Arrival]:
        """What has come since the last call."""
        out: list[Arrival] = []
        try:
            while os.read(self.wake, 4096):
                pass
        except BlockingIOError:
            pass
        try:
            while True:
                out.append(self._inbox.get_nowait())
        except queue.Empty:
            return out

    def send(self, letters: Letters) -> None:
        """Hand frames to their connections; those that are closed by now do not matter."""
        if letters:
            self._loop.call_soon_threadsafe(self._deliver, letters)

    def stand(self, pulse: Pulse, oldest_s: float | None) -> None:
        """How the engine stands from now on; `oldest_s` is when the oldest step in flight left, by time.monotonic."""
        self._standing = pulse, oldest_s

    def leave(self) -> None:
        """Ask ingresses for no new requests."""
        self._loop.call_soon_threadsafe(self._tell, Leave())

    def close(self) -> None:
        """Close every connection once what was handed over is sent."""
        self._do(self._close()).result(OPEN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def arrive(self, connection: int, frame: Frame | None) -> None:
        """From the port's thread: something for the engine."""
        self._inbox.put((connection, frame))
        os.write(self._waker, b"!")

    def entered(self, connection: _Connection, hello: Hello) -> bool:
        """From the port's thread: whether an ingress is let in."""
        if not admits(hello, self._secret):
            log.warning("an ingress with a wrong secret was turned away")
            return False
        self._connections[connection.number] = connection
        connection.send(self._welcome)
        if self._standing:
            connection.send(self._pulse(*self._standing))
        return True

    def left(self, connection: _Connection) -> None:
        """From the port's thread: a connection is closed."""
        if self._connections.pop(connection.number, None):
            self.arrive(connection.number, None)

    async def _open(self, host: str) -> asyncio.Server:
        server = await self._loop.create_server(self._connection, host, 0)
        self._beating = self._loop.create_task(self._beat())
        return server

    def _connection(self) -> _Connection:
        self._count += 1
        return _Connection(self, self._count)

    async def _beat(self) -> None:
        while True:
            if self._standing:
                self._tell(self._pulse(*self._standing))
            await asyncio.sleep(PULSE_S)

    def _pulse(self, pulse: Pulse, left_s: float | None) -> Pulse:
        return pulse if left_s is None else replace(pulse, oldest_s=time.monotonic() - left_s)

    def _tell(self, frame: Frame) -> None:
        for connection in tuple(self._connections.values()):
            connection.send(frame)

    def _deliver(self, letters: Letters) -> None:
        for number, frame in letters:
            if connection := self._connections.get(number):
                connection.send(frame)

    async def _close(self) -> None:
        self._server.close()
        if self._beating:
            self._beating.cancel()
        for connection in tuple(self._connections.values()):
            connection.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class _Connection(asyncio.Protocol):
    """One ingress."""

    def __init__(self, port: Port, number: int):
        self.number = number
        self._port = port
        self._reader = FrameReader(TO_ENGINE)
        self._transport: asyncio.Transport | None = None
        self._entered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._heard(frame)
        except (FrameError, RayplaneError) as error:
            log.warning("an ingress sent %s", error)
            self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._port.left(self)

    def send(self, frame: Frame) -> None:
        """At once, or as soon as the other side reads."""
        if self._transport:
            self._transport.write(encode(frame))

    def close(self) -> None:
        """Once all is sent."""
        if self._transport:
            self._transport.close()

    def _heard(self, frame: Frame) -> None:
        if self._entered:
            self._port.arrive(self.number, frame)
        elif isinstance(frame, Hello) and self._port.entered(self, frame):
            self._entered = True
        else:
            self._abort()

    def _abort(self) -> None:
        if self._transport:
            self._transport.abort()
