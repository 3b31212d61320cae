"""The loop of a replica's rank 0: the engine's thread, between its port, its own part of the model and the other ranks.

    arrivals ─▶ engine ─▶ next step ─▶ hub ─▶ the others
                   ▲           └─▶ this rank's part ─┐
                   └── drawn ◀── hub, or this rank ──┘        asleep in select(2) while there is nothing to do

With one stage a step is back at once. With several, as many steps are on their way as there are stages.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from rayplane.serve.engine import Engine
from rayplane.serve.outputs import Sampled
from rayplane.serve.packing import pack
from rayplane.serve.port import Port
from rayplane.serve.rank import ServeRank
from rayplane.serve.report import Reporter
from rayplane.serve.star import Hub

IDLE_S = 0.05
"""How often deadlines and the order to stop are looked at when nothing comes."""


class Host:
    """`reporter` counts this rank's steps."""

    def __init__(self, engine: Engine, port: Port, hub: Hub, rank: ServeRank, reporter: Reporter):
        self._engine, self._port, self._hub, self._rank = engine, port, hub, rank
        self._reporter = reporter
        self._stand()

    def serve(self, draining: Callable[[], bool], drain_s: float) -> None:
        """Until the order to stop has come and all that runs is finished, or `drain_s` has passed since."""
        leave_s = None
        while leave_s is None or (self._engine.has_work and time.monotonic() < leave_s):
            if leave_s is None and draining():
                leave_s = time.monotonic() + drain_s
                self._port.leave()
            self.turn()

    def turn(self) -> None:
        """Take what has come, start a step if there is one, and take in one that is back."""
        for connection, frame in self._port.arrivals():
            if frame is None:
                self._engine.closed(connection)
            else:
                self._port.send(self._engine.receive(connection, frame, time.monotonic()))
        self._port.send(self._engine.expire(time.monotonic()))
        step = self._engine.next_step(time.monotonic())
        if step is None:
            self._wait()
            return
        self._stand()
        self._hub.send(pack(step))
        drawn = self._rank.run(step)
        self._reporter.stepped(len(step.tokens))
        if self._hub.results is None:
            self._done(drawn)
        elif select.select([self._hub.results], [], [], 0)[0]:
            self._done(self._hub.receive())

    def _wait(self) -> None:
        results = self._hub.results
        lines: list[Any] = [self._port.wake] if results is None else [self._port.wake, results]
        with self._rank.mesh.clock.phase("recv_wait"):
            ready = select.select(lines, [], [], IDLE_S)[0]
        if results is not None and results in ready:
            self._done(self._hub.receive())
        elif not ready:
            self._stand()

    def _done(self, drawn: list[Sampled]) -> None:
        self._port.send(self._engine.done(drawn, time.monotonic()))
        self._stand()

    def _stand(self) -> None:
        self._port.stand(self._engine.pulse(time.monotonic()), self._engine.oldest_s)
