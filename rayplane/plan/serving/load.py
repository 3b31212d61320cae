"""A replica under load: time to the first token, and time per token after it.

closed      `concurrency` requests at a time, the next as soon as one ends; as many as the cache holds: the replica is saturated
open        `rate` requests a second, at random (Poisson)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rayplane.plan.serving.batching import Batching, Request
from rayplane.plan.serving.kv import Room
from rayplane.plan.serving.serve import Replica

ROUNDS = 10
"""Of a closed load: requests over concurrency, as benchmark tools have it."""
GOLDEN, PLASTIC = 0.6180339887498949, 0.7548776662466927
"""Multiples of these spread evenly over a unit, and in no step with each other."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of a kind: tokens in and out, and how they come."""

    prompt: int
    output: int
    concurrency: int = 0
    """At a time; 0: they come at `rate`."""
    rate: float = 0.0
    """Requests a second."""
    requests: int = 0
    """In all; 0: ten times the concurrency."""
    cached: float = 0.0
    """Share of each prompt that the prefix cache has."""
    spread: float = 0.0
    """Lengths lie evenly within this share around those above."""
    warm: float = 0.0
    """Share of the requests that come before any is counted."""

    @property
    def count(self) -> int:
        """Requests in all."""
        return self.requests or ROUNDS * self.concurrency

    def lengths(self, index: int) -> tuple[int, int]:
        """Tokens in and out of a request."""
        a, b = ((index * step) % 1 - 0.5 for step in (GOLDEN, PLASTIC))
        prompt, output = self.prompt * (1 + 2 * self.spread * a), self.output * (1 + 2 * self.spread * b)
        return max(1, round(prompt)), max(1, round(output))

    def request(self, index: int, arrival: float) -> Request:
        """One of them; the last token of its prompt is computed in any case."""
        prompt, output = self.lengths(index)
        return Request(arrival, prompt, output, computed=min(prompt - 1, round(self.cached * prompt)))


@dataclass(frozen=True, slots=True)
class Played:
    """What a load met, in seconds, by request in the order of arrival."""

    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    """Mean between the tokens of each request with more than one."""
    tokens_s: float
    """Output tokens per second, from the first arrival to the last token."""
    put_off: int
    """How often a sequence lost its cache to others."""


def mean(values: Sequence[float]) -> float:
    """Of seconds; 0 for none."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of them does not exceed; 0 for none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def saturating(of: Replica, room: Room, prompt: int, output: int) -> int:
    """So many sequences of these lengths run at a time where more are always waiting."""
    reserved = prompt + output * max(0.5, of.engine.reserve)
    return max(1, min(of.engine.max_sequences, math.floor(room.tokens / reserved)))


def play(replica: Replica, room: Room, load: Load) -> Played:
    """Play a load on a replica that has room for each of its sequences alone."""
    issued = 0

    def issue(when: float) -> None:
        nonlocal issued
        if issued < load.count:
            batching.come(load.request(issued, when))
            issued += 1

    batching = Batching(replica, room.tokens, issue if load.concurrency else _nothing)
    when, random = 0.0, Random(0)
    for _ in range(min(load.concurrency, load.count) or load.count):
        when += 0.0 if load.concurrency else random.expovariate(load.rate)
        issue(when)
    while len(batching.ended) < load.count:
        batching.step()
    counted = sorted(batching.ended, key=lambda r: r.arrival)[int(load.warm * load.count) :]
    between = tuple(tpot for r in counted if (tpot := r.tpot_s) is not None)
    return Played(tuple(r.ttft_s for r in counted), between, batching.tokens / batching.told, batching.put_off)


def _nothing(when: float) -> None:
    """An open load does not wait for anyone."""
