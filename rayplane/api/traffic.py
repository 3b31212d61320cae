"""The last seconds of traffic in a few numbers, for whoever decides how many replicas there are.

[ 5 s | 5 s | 5 s | 5 s | 5 s | now ]      slices; a quantile or rate is over all of them, and the oldest is dropped for a new one

Sizes are counted in buckets 5% apart, so a quantile is up to 5% high.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil, log

SLICE_S = 5.0
NUM_SLICES = 6
STEP = log(1.05)
LEAST_S = 1e-5
PERCENTILE = 0.99


def bucket(seconds: float) -> int:
    """Number of the bucket that holds a time."""
    return ceil(log(max(seconds, LEAST_S)) / STEP)


def quantile(counts: Counter[int], share: float) -> float | None:
    """A time, in s, that this share of all does not exceed; None of none."""
    from_below, wanted = 0, ceil(share * counts.total())
    for number in sorted(counts):
        from_below += counts[number]
        if from_below >= wanted:
            return float(1.05**number)
    return None


@dataclass(slots=True)
class _Slice:
    begun_at: float
    ttft: Counter[int] = field(default_factory=Counter)
    itl: Counter[int] = field(default_factory=Counter)
    queue: Counter[int] = field(default_factory=Counter)
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the last `window_s`; times are None where nothing was measured."""

    window_s: float
    requests_s: float
    """Arrivals that were admitted."""
    prompt_tokens_s: float
    cached_tokens_s: float
    """Of those, the ones that a prefix cache had."""
    output_tokens_s: float
    refused_s: float
    """Answered with 429 or 503."""
    ttft_p99_s: float | None
    itl_p99_s: float | None
    queue_p99_s: float | None


class Traffic:
    """Counts what passes."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._slices: deque[_Slice] = deque([_Slice(clock())], maxlen=NUM_SLICES)

    def started(self, queued_s: float, prompt_tokens: int, cached_tokens: int = 0) -> None:
        """A replica has begun with a request."""
        now = self._now()
        now.queue[bucket(queued_s)] += 1
        now.requests += 1
        now.prompt_tokens += prompt_tokens
        now.cached_tokens += cached_tokens

    def first_token(self, ttft_s: float) -> None:
        """Its first token has come."""
        now = self._now()
        now.ttft[bucket(ttft_s)] += 1
        now.output_tokens += 1

    def gap(self, itl_s: float, count: int) -> None:
        """So many tokens have come, so far apart."""
        now = self._now()
        now.itl[bucket(itl_s)] += count
        now.output_tokens += count

    def refused(self) -> None:
        """A request was sent away."""
        self._now().refused += 1

    def summary(self) -> Summary:
        """The numbers as they stand."""
        self._now()
        window_s = max(self._clock() - self._slices[0].begun_at, 1e-3)

        def p99(counts: Iterable[Counter[int]]) -> float | None:
            return quantile(sum(counts, Counter()), PERCENTILE)

        return Summary(
            window_s=window_s,
            requests_s=sum(s.requests for s in self._slices) / window_s,
            prompt_tokens_s=sum(s.prompt_tokens for s in self._slices) / window_s,
            cached_tokens_s=sum(s.cached_tokens for s in self._slices) / window_s,
            output_tokens_s=sum(s.output_tokens for s in self._slices) / window_s,
            refused_s=sum(s.refused for s in self._slices) / window_s,
            ttft_p99_s=p99(s.ttft for s in self._slices),
            itl_p99_s=p99(s.itl for s in self._slices),
            queue_p99_s=p99(s.queue for s in self._slices),
        )

    def _now(self) -> _Slice:
        now, newest = self._clock(), self._slices[-1]
        if now - newest.begun_at >= SLICE_S:
            if now - newest.begun_at >= SLICE_S * NUM_SLICES:
                self._slices.clear()  # nothing of it is recent
            newest = _Slice(now)
            self._slices.append(newest)
        return newest
