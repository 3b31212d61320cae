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

import numpy as np

from rayplane.serve.batch import StepArrays
from rayplane.serve.engine import Engine
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.outputs import Sampled
from rayplane.serve.packing import pack
from rayplane.serve.port import Port
from rayplane.serve.rank import TAGS, ServeRank
from rayplane.serve.report import Reporter
from rayplane.serve.star import Hub

IDLE_S = 0.05
"""How often deadlines and the order to stop are looked at when nothing comes."""


def warm_up(rank: ServeRank, hub: Hub, limits: SchedulerLimits) -> float:
    """Seconds per token of a large step, computed for nobody: memory is touched and kernels are chosen before a request comes.

    All ranks take part; those after this one are not waited for.
    """
    count = min(limits.max_batch_tokens, limits.max_context)
    token_s = 0.0
    for number in (TAGS - 2, TAGS - 1):
        began_s = time.monotonic()
        step = empty_step(count, limits.block_size, number)
        hub.send(pack(step))
        rank.run(step)
        token_s = (time.monotonic() - began_s) / count * limits.batches_in_flight
    for _ in range(2 if hub.results is not None else 0):
        hub.receive()  # one answer for each, though nothing was drawn
    return token_s


def empty_step(count: int, block_size: int, number: int) -> StepArrays:
    """A sequence of so many tokens in the first blocks, of which none is drawn."""
    positions = np.arange(count, dtype=np.int64)
    nothing = np.zeros(0, np.int64)
    return StepArrays(
        tokens=np.zeros(count, np.int64),
        positions=positions,
        slots=positions,
        rows=nothing,
        ids=np.zeros(1, np.int64),
        starts=np.array([0, count], np.int32),
        lengths=np.array([count], np.int32),
        num_drafts=np.zeros(1, np.int32),
        tables=np.arange(-(-count // block_size), dtype=np.int32)[None],
        copies=np.zeros((0, 2), np.int32),
        number=number,
    )


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
            if not self._engine.has_work:
                self._reporter.idle()

    def _done(self, drawn: list[Sampled]) -> None:
        self._port.send(self._engine.done(drawn, time.monotonic()))
        self._stand()

    def _stand(self) -> None:
        self._port.stand(self._engine.pulse(time.monotonic()), self._engine.oldest_s)
