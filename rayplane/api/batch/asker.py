"""Asks all requests of a batch, as many at a time as the pace says, until there are none or somebody stops it.

requests ──▶ out (at most pace.limit) ──post──▶ verdict ──▶ Write, GiveUp ──▶ whoever listens
                 ▲                                 │
                 └────────── later ◀──Again────────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rayplane.api.batch.client import Client
from rayplane.api.batch.lines import Ask
from rayplane.api.batch.pace import Pace, first_pace, looked, paused, refused
from rayplane.api.batch.verdict import Again, GiveUp, Lost, Reply, Write, verdict
from rayplane.control.stop import Stop
from rayplane.errors import RayplaneError

TICK_S = 0.1
LOOK_EVERY_S = 0.5
MAX_GIVEN_UP = 20
"""So many in a row, and none answered in between, are not the requests' fault."""

Ending = Literal["done", "stopped"]


class Listener(Protocol):
    """Gets what came."""

    def answered(self, ask: Ask, answer: Write) -> None:
        """A request has its answer, be it an error."""

    def given_up(self, ask: Ask, reason: str) -> None:
        """A request was tried too often."""

    def leaving(self, num_out: int, by_s: float) -> None:
        """It was stopped; so many requests are out, and are waited for so long."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How it is asked."""

    concurrency: int | None
    """Requests at a time; as many as the engines take when None."""
    most: int
    """What this machine can bear."""
    drain_s: float
    """How long what runs may go on after the order to stop."""
    patience_s: float = math.inf
    """How long the service may be gone."""


@dataclass(order=True, slots=True)
class _Attempt:
    """A request that is out, or is to be asked again."""

    ready_s: float
    number: int
    ask: Ask = field(compare=False)
    tries: int = field(compare=False, default=0)


class Asker:
    """One run. `clock` counts seconds."""

    def __init__(self, client: Client, conditions: Conditions, listener: Listener):
        self._client, self._conditions, self._listener = client, conditions, listener
        self._clock = time.monotonic
        self._came: asyncio.Queue[tuple[_Attempt, Reply | Lost | Exception]] = asyncio.Queue()
        self._out: set[asyncio.Task[None]] = set()
        self._num_out = 0
        self._later: list[_Attempt] = []
        self._numbers = self._given_up = 0
        self._exhausted = False
        self._pace = Pace(1, 1, steady=False)
        self._alive_s = self._clock()
        self._trouble = ""
        self._leave_by_s: float | None = None
        """When stopped: until when what is out is waited for."""

    async def run(self, asks: Iterator[Ask], stop: Stop) -> Ending:
        """Until all is asked. RayplaneError where the service is gone, or fails with everything."""
        self._pace = first_pace(self._conditions.concurrency, await self._client.look(), self._conditions.most)
        self._alive_s = self._clock()
        looking = asyncio.create_task(self._look())
        try:
            while self._goes_on():
                if stop.take():
                    self._leave()
                self._fill(asks)
                await self._hear()
                self._check()
        finally:
            for task in (looking, *self._out):
                task.cancel()
            await asyncio.gather(looking, *self._out, return_exceptions=True)
        return "done" if self._exhausted and not self._later and not self._num_out else "stopped"

    def _goes_on(self) -> bool:
        if self._leave_by_s is not None:
            return self._num_out > 0 and self._clock() < self._leave_by_s
        return bool(self._num_out or self._later or not self._exhausted)

    def _leave(self) -> None:
        """The first time what is out may end, the second time it may not."""
        for_s = self._conditions.drain_s if self._leave_by_s is None else 0.0
        self._leave_by_s = self._clock() + for_s
        self._listener.leaving(self._num_out, for_s)

    def _fill(self, asks: Iterator[Ask]) -> None:
        """Send what may go."""
        now_s = self._clock()
        while self._leave_by_s is None and self._pace.room(self._num_out, now_s):
            attempt = self._next(asks, now_s)
            if attempt is None:
                return
            task = asyncio.create_task(self._one(attempt))
            self._num_out += 1
            self._out.add(task)
            task.add_done_callback(self._out.discard)

    def _next(self, asks: Iterator[Ask], now_s: float) -> _Attempt | None:
        """What is to be asked again comes first; while much of that waits, nothing new is begun."""
        if self._later and self._later[0].ready_s <= now_s:
            return heapq.heappop(self._later)
        if self._exhausted or self._num_out + len(self._later) >= self._pace.limit:
            return None
        ask = next(asks, None)
        if ask is None:
            self._exhausted = True
            return None
        self._numbers += 1
        return _Attempt(0.0, self._numbers, ask)

    async def _one(self, attempt: _Attempt) -> None:
        came: Reply | Lost | Exception
        try:
            came = await self._client.post(attempt.ask)
        except Exception as fault:  # raised where it is heard, or nobody would
            came = fault
        self._came.put_nowait((attempt, came))

    async def _hear(self) -> None:
        """What has come; waits a moment where nothing has."""
        with contextlib.suppress(TimeoutError):
            self._follow(*await asyncio.wait_for(self._came.get(), TICK_S))
            while not self._came.empty():
                self._follow(*self._came.get_nowait())

    def _follow(self, attempt: _Attempt, came: Reply | Lost | Exception) -> None:
        if isinstance(came, Exception):
            raise came
        self._num_out -= 1
        now_s = self._clock()
        match verdict(came, attempt.tries):
            case Write() as answer:
                self._alive_s, self._given_up = now_s, 0
                self._listener.answered(attempt.ask, answer)
            case GiveUp(reason):
                self._given_up, self._trouble = self._given_up + 1, reason
                self._listener.given_up(attempt.ask, reason)
            case Again(after_s, tried, busy):
                if busy:
                    self._pace = refused(self._pace, self._num_out, now_s, after_s)
                elif not tried:
                    self._trouble = came.reason if isinstance(came, Lost) else str(came.status)
                    self._pace = paused(self._pace, now_s, after_s)
                heapq.heappush(self._later, _Attempt(now_s + after_s, attempt.number, attempt.ask, attempt.tries + tried))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            seen = await self._client.look()
            if seen is not None:
                self._alive_s = self._clock()
                self._pace = looked(self._pace, seen, self._num_out)

    def _check(self) -> None:
        if self._given_up >= MAX_GIVEN_UP:
            raise RayplaneError(f"{self._client.url} fails with every request, the last time with: {self._trouble}; see its log")
        if self._clock() - self._alive_s > self._conditions.patience_s:
            gone = f"has served nothing for {self._conditions.patience_s:g} s"
            raise RayplaneError(f"{self._client.url} {gone}{f': {self._trouble}' if self._trouble else ''}")
