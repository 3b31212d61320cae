"""The continuations that one request asked for, from their start to the last one's end.

prompts × n ──admit──▶ flights ──▶ choices ──changed──▶ whoever answers          cancel: the client has gone, or the deadline is over
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rayplane.api.choice import Choice
from rayplane.api.detokenize import Detokenizer
from rayplane.api.errors import ApiError
from rayplane.api.fleet import Fleet
from rayplane.api.flight import Flight
from rayplane.api.metrics import Metrics, Stopwatch
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.stops import StopStrings


@dataclass(frozen=True, slots=True)
class Wanted:
    """One continuation."""

    prompt: tuple[int, ...]
    params: SamplingParams
    decoder: Detokenizer
    stops: StopStrings
    first: bool
    """Whether no continuation of the same prompt stands before it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all continuations of a request."""

    priority: int
    session: str
    salt: str
    arrived_at: float
    deadline_s: float | None


class Generation:
    """All continuations of one request."""

    def __init__(self, wanted: Sequence[Wanted], terms: Terms, fleet: Fleet, metrics: Metrics):
        """Begins at once. Raises the ApiError of a full queue, or of a service that stops."""
        fleet.admit(len(wanted))
        self.gone = False
        """Nobody waits for it any more."""
        self.prompt_tokens = sum(len(w.prompt) for w in wanted if w.first)
        self._fleet, self._first = fleet, tuple(w.first for w in wanted)
        self._changed = asyncio.Event()
        self._deadline_s = terms.deadline_s
        deadline_at = None if terms.deadline_s is None else terms.arrived_at + terms.deadline_s
        self.choices: list[Choice] = []
        self._flights: list[Flight] = []
        for number, want in enumerate(wanted):
            stopwatch = Stopwatch(metrics, len(want.prompt), terms.arrived_at)
            self.choices.append(Choice(want.params, want.decoder, want.stops, stopwatch, self._waker(number)))
            sibling = None if want.first else self._flights[-1].sibling or self._flights[-1]
            self._flights.append(
                Flight(want.prompt, want.params, self.choices[-1], terms.priority, terms.session, terms.salt, deadline_at, sibling)
            )
        for flight in self._flights:
            fleet.launch(flight)
        self._timer = None if deadline_at is None else asyncio.get_running_loop().call_at(deadline_at, self._expire)

    @property
    def ended(self) -> bool:
        """Whether every continuation has ended."""
        return all(choice.ended for choice in self.choices)

    @property
    def completion_tokens(self) -> int:
        """Generated so far."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Of the prompts, found in the prefix cache."""
        return sum(choice.cached for choice, first in zip(self.choices, self._first, strict=True) if first)

    async def changed(self) -> None:
        """Wait until there is something to take, or nobody waits any more."""
        await self._changed.wait()
        self._changed.clear()

    async def finished(self) -> None:
        """Wait for the end. Raises the ApiError of the first continuation that fails."""
        while not self.gone and not self.ended:
            await self.changed()
            self.check()

    async def begun(self) -> None:
        """Wait for the first token. Raises the ApiError of the first continuation that fails before."""
        while not self.gone and not any(choice.pending for choice in self.choices):
            await self.changed()
        self.check()

    def check(self) -> None:
        """Raise the error of a continuation that failed."""
        if error := next((choice.error for choice in self.choices if choice.error), None):
            raise error

    def cancel(self) -> None:
        """Nobody waits any more; replicas stop within a step. May be called twice, and after the end."""
        self.gone = True
        if self._timer:
            self._timer.cancel()
        for choice in self.choices:
            choice.cancelled()
        self._changed.set()

    def _waker(self, number: int) -> Callable[[], None]:
        def wake() -> None:
            self._changed.set()
            if self.choices[number].ended:  # by a stop string the replica knows nothing of
                self._fleet.cancel(self._flights[number])

        return wake

    def _expire(self) -> None:
        for choice in self.choices:
            choice.failed(ApiError(504, f"the deadline of {self._deadline_s:g} s passed", code="deadline"))
