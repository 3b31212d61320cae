"""Where a rank's time goes: a clock that is always in exactly one phase, so that the phases sum to the wall time.

    clock.start()                      host
      with clock.phase("forward"):     forward
        with clock.phase("tp"):        tp          (forward stands still)
      ...                              host
    clock.take()                       {"host": …, "forward": …, "tp": …}   sums to the time since start

On a CPU a stamp is a time; on CUDA it is an event on the compute stream, read only in `take`, so that nothing waits inside a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Stamp = Any


class PhaseClock:
    """Marks phase changes; phases nest, and an inner phase takes its time out of the outer one."""

    def __init__(
        self,
        stamp: Callable[[], Stamp] = time.perf_counter,
        elapsed_s: Callable[[Stamp, Stamp], float] = lambda a, b: b - a,
    ):
        self._stamp, self._elapsed_s = stamp, elapsed_s
        self._stack = ["host"]
        self._marks: list[tuple[str, Stamp]] = []
        self.start()

    def start(self) -> None:
        """Forget what was measured; a new step begins."""
        self._marks = [(self._stack[-1], self._stamp())]

    def phase(self, name: str) -> _Phase:
        """A context in which time counts as `name`."""
        return _Phase(self, name)

    def enter(self, name: str) -> None:
        """Begin an inner phase."""
        self._stack.append(name)
        self._marks.append((name, self._stamp()))

    def leave(self) -> None:
        """End the inner phase and go on with the outer one."""
        self._stack.pop()
        self._marks.append((self._stack[-1], self._stamp()))

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last `start` or `take`; the next step begins at this very moment."""
        marks, end = self._marks, self._stamp()
        self._marks = [(self._stack[-1], end)]
        seconds: dict[str, float] = {}
        for (name, begin), (_, until) in zip(marks, [*marks[1:], ("", end)], strict=True):
            seconds[name] = seconds.get(name, 0.0) + self._elapsed_s(begin, until)
        return seconds


class _Phase:
    __slots__ = ("_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str):
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._clock.enter(self._name)

    def __exit__(self, *exc: object) -> None:
        self._clock.leave()


def clock_for(device: torch.device) -> PhaseClock:
    """A clock of the host on CPU; of the compute stream on CUDA."""
    if device.type != "cuda":
        return PhaseClock()
    return PhaseClock(_record, _between_s)


def _record() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_s(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
