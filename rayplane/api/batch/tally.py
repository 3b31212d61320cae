"""How far a batch is: what came, how fast, and how long the rest will take at the pace of the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rayplane.api.batch.prompts import Census
from rayplane.api.batch.verdict import OK, Write

WINDOW_S = 60.0
SLICE_S = 1.0


class Tally:
    """Counts. `clock` counts seconds."""

    def __init__(self, census: Census, clock: Callable[[], float] = time.monotonic):
        self.census, self._clock = census, clock
        self.done = self.failed = self.given_up = 0
        """Answered; refused; tried too often, and not written."""
        self.prompt_tokens = self.output_tokens = 0
        self._began_s = self._last_s = clock()
        self._slices: deque[tuple[float, int, int]] = deque([(self._began_s, 0, 0)])
        """When, and what had come by then: requests, output tokens."""

    def begin(self) -> None:
        """Requests are asked from now on."""
        self._began_s = self._last_s = self._clock()
        self._slices = deque([(self._began_s, 0, 0)])

    def add(self, answer: Write) -> None:
        """One more has come."""
        self._last_s = self._clock()
        if answer.status != OK:
            self.failed += 1
        else:
            self.done += 1
            self.prompt_tokens += _used(answer.body, "prompt_tokens")
            self.output_tokens += _used(answer.body, "completion_tokens")
        if self._last_s - self._slices[-1][0] >= SLICE_S:
            self._slices.append((self._last_s, self.written, self.output_tokens))
            while self._last_s - self._slices[0][0] > WINDOW_S:
                self._slices.popleft()

    @property
    def written(self) -> int:
        """By this run."""
        return self.done + self.failed

    @property
    def settled(self) -> int:
        """By all runs."""
        return self.census.skipped + self.written

    @property
    def left(self) -> int:
        """What has no answer yet."""
        return self.census.requests - self.settled

    @property
    def wall_s(self) -> float:
        """From the first request to the newest answer."""
        return self._last_s - self._began_s

    @property
    def output_tokens_s(self) -> float:
        """Over all of it."""
        return self.output_tokens / self.wall_s if self.wall_s else 0.0

    def recent(self) -> tuple[float, float]:
        """(requests a second, output tokens a second) of late; zeros where nothing can be said yet."""
        since_s, requests, tokens = self._slices[0]
        span_s = self._last_s - since_s
        return ((self.written - requests) / span_s, (self.output_tokens - tokens) / span_s) if span_s else (0.0, 0.0)

    def remaining_s(self) -> float | None:
        """Until the end, at that pace."""
        requests_s, _ = self.recent()
        return self.left / requests_s if requests_s else None


def _used(body: Any, name: str) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    tokens = usage.get(name) if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else 0
