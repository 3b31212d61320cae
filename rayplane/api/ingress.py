"""An ingress: everything between its port and its replicas, made from a ServerConfig, started and drained.

open ──▶ serving ──drain──▶ refuses new requests, finishes what runs (drain_s) ──▶ closed
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections.abc import Iterator

import uvicorn

from rayplane.api.app import build_app
from rayplane.api.config import ServerConfig
from rayplane.api.fleet import Fleet, FleetSettings
from rayplane.api.metrics import Metrics
from rayplane.api.orders import Orders
from rayplane.api.protocol.sampling import Bounds
from rayplane.api.router import Router
from rayplane.api.routes import Ingress
from rayplane.api.tokenizer import open_tokenizer
from rayplane.errors import RayplaneError
from rayplane.serve.wire import Hello

BACKLOG = 2048
KEEP_ALIVE_S = 75
DRAIN_CHECK_S = 0.02
STUCK_READER_MS = 60_000
"""The kernel breaks off a connection whose reader takes nothing for so long."""
log = logging.getLogger(__name__)


class QuietServer(uvicorn.Server):
    """A server that leaves signals to its owner."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class Service:
    """A running ingress. Made inside an event loop."""

    def __init__(self, config: ServerConfig):
        """Raises RayplaneError when the tokenizer cannot be read or the port cannot be had."""
        loop = asyncio.get_running_loop()
        tokenizer = open_tokenizer(config.tokenizer)
        bounds = Bounds(config.vocab or tokenizer.vocab, tokenizer.end_tokens | frozenset(config.end_tokens))
        hello = Hello(config.secret, config.ingress)
        self._socket = listen(config.host, config.port)
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        self.fleet = Fleet(FleetSettings(hello, config.stall_s, config.max_queue, config.no_replica_s), Router())
        self.metrics = Metrics(config.run or config.model, self.fleet, loop.time)
        orders = Orders(tokenizer, config.max_context, bounds)
        app = build_app(Ingress(config, orders, self.fleet, self.metrics, int(time.time())))
        self._drain_s = config.drain_s
        self._server = QuietServer(_uvicorn_config(app))
        self._serving = loop.create_task(self._server.serve([self._socket]))
        self.fleet.set_replicas(config.replicas)
        log.info("serving %s on http://%s", config.model, self.address)

    async def drain(self) -> None:
        """Refuse what is new, finish what runs, and close; what is not done after drain_s is broken off."""
        self.fleet.closing = True
        log.info("stopping: %d requests run", self.fleet.in_flight)
        end_at = time.monotonic() + self._drain_s
        while self.fleet.in_flight and time.monotonic() < end_at:
            await asyncio.sleep(DRAIN_CHECK_S)
        await self.close()

    async def close(self) -> None:
        """Close now."""
        self.fleet.close()
        self._server.should_exit = True
        await self._serving

    async def failed(self) -> None:
        """Wait for the end of the HTTP server, which should come by `close` only."""
        await asyncio.wait([self._serving])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. RayplaneError when the port cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STUCK_READER_MS)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise RayplaneError(f"serve.port: {host}:{port} {reason}; choose another, or 0 for a free one") from None
    sock.listen(BACKLOG)
    return sock


def _uvicorn_config(app: uvicorn.config.ASGIApplication) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        backlog=BACKLOG,
    )
