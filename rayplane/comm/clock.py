"""Where a rank's time goes: a clock that is always in exactly one phase, so that the phases sum to the wall time.

    clock.start()                      host
      with clock.phase("forward"):     forward
        with clock.phase("tp"):        tp          (forward stands still)
      ...                              host
    clock.take()                       {"host": …, "forward": …, "tp": …}   sums to the time since start

Between `record` and `recorded` the changes themselves are kept: which phase, of which subject (an Action), from when until when.
On a CPU a stamp is a time; on CUDA it is an event on the compute stream, read only in `take`, so that nothing waits inside a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from rayplane.spec.report import Stretch

Stamp = Any
Mark = tuple[str, object, Stamp]
"""From this moment on the clock is in a phase, for a subject."""


class PhaseClock:
    """Marks phase changes; phases nest, and an inner phase takes its time out of the outer one."""

    def __init__(
        self,
        stamp: Callable[[], Stamp] = time.perf_counter,
        elapsed_s: Callable[[Stamp, Stamp], float] = lambda a, b: b - a,
    ):
        self._stamp, self._elapsed_s = stamp, elapsed_s
        self._stack = ["host"]
        self._subject: object = ""
        self._marks: list[Mark] = []
        self._origin: Mark | None = None
        self._kept: list[Mark] = []
        self.start()

    def start(self) -> None:
        """Forget what was measured; a new step begins."""
        self._marks = []
        self._mark()

    def phase(self, name: str) -> _Phase:
        """A context in which time counts as `name`."""
        return _Phase(self, name)

    def enter(self, name: str) -> None:
        """Begin an inner phase."""
        self._stack.append(name)
        self._mark()

    def leave(self) -> None:
        """End the inner phase and go on with the outer one."""
        self._stack.pop()
        self._mark()

    def about(self, subject: object) -> None:
        """What follows is for `subject`, which names it by how it prints."""
        self._subject = subject
        if self._origin is not None:
            self._mark()

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last `start` or `take`; the next step begins at this very moment."""
        marks = self._marks
        self.start()
        seconds: dict[str, float] = {}
        for (name, _, begin), (_, _, until) in pairwise((*marks, *self._marks)):
            seconds[name] = seconds.get(name, 0.0) + self._elapsed_s(begin, until)
        if self._origin is not None:
            self._kept += marks
        return seconds

    def record(self) -> None:
        """Keep every change from now on; this moment is second 0 of what `recorded` gives."""
        self._mark()
        self._origin, self._kept = self._marks[-1], []

    def recorded(self) -> tuple[Stretch, ...]:
        """What happened between `record` and the last `take`; no more is kept."""
        assert self._origin is not None, "nothing was recorded"
        (_, _, begin), marks = self._origin, [*self._kept, self._marks[0]]
        marks = marks[marks.index(self._origin) :]
        self._origin, self._kept = None, []
        seconds = [self._elapsed_s(begin, stamp) for _, _, stamp in marks]
        return tuple(
            Stretch(phase, str(subject), *ends_s) for (phase, subject, _), ends_s in zip(marks[:-1], pairwise(seconds), strict=True)
        )

    def _mark(self) -> None:
        self._marks.append((self._stack[-1], self._subject, self._stamp()))


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
