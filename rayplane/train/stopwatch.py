"""How long something takes on a rank: medians over calls that go on for a while, on all ranks at the same time.

watch.median_s(lambda: linear(x, w))                     one number
watch.laps_s(body)                                       body(lap) calls lap() behind each of its parts
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch

Lap = Callable[[], None]
FEWEST = 3
MOST = 10_000


class Stopwatch:
    """Measures each body for at least `least_s`, after one call that does not count."""

    def __init__(self, device: torch.device, least_s: float):
        self._device, self._least_s = device, least_s

    def median_s(self, *calls: Callable[[], object]) -> float:
        """Seconds of a call; several take turns, so that none finds its operands in the caches."""

        def body(lap: Lap) -> None:
            for call in calls:
                call()
                lap()

        return statistics.median(self.laps_s(body))

    def laps_s(self, body: Callable[[Lap], None], times: int = 0) -> list[float]:
        """Seconds of each of the body's parts. `times`: how often, where ranks have to agree on that."""
        self._once(body)
        rounds: list[list[float]] = []
        begin = time.perf_counter()
        while self._goes_on(len(rounds), begin, times):
            rounds.append(self._once(body))
        return [statistics.median(part) for part in zip(*rounds, strict=True)]

    def times_for(self, body: Callable[[Lap], None]) -> int:
        """How often a body has to run to take `least_s`."""
        self._once(body)
        return min(MOST, max(FEWEST, math.ceil(self._least_s / max(sum(self._once(body)), 1e-6))))

    def _goes_on(self, done: int, begin: float, times: int) -> bool:
        if times:
            return done < times
        return done < FEWEST or (time.perf_counter() - begin < self._least_s and done < MOST)

    def _once(self, body: Callable[[Lap], None]) -> list[float]:
        out: list[float] = []
        self._settle()
        begin = time.perf_counter()

        def lap() -> None:
            nonlocal begin
            self._settle()
            now = time.perf_counter()
            out.append(now - begin)
            begin = now

        body(lap)
        return out

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
