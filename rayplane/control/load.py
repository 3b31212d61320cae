"""What a service's ingresses saw in their last seconds, added up.

    ingress a   2 requests/s, first token 0.4 s ─┐
    ingress b   3 requests/s, first token 0.6 s ─┴▶ 5 requests/s, first token 0.6 s

Rates are summed; of times the longest counts. A replica stands as the ingress sees it that reaches it best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STATES = ("lost", "connecting", "leaving", "live")
"""Of a replica at an ingress, the worst first."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica, seen from an ingress."""

    state: str = "connecting"
    """One of STATES."""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    reason: str = ""
    """Why it is lost."""


@dataclass(frozen=True, slots=True)
class Load:
    """Of all ingresses. A time is None where nothing was measured."""

    requests_s: float = 0.0
    prompt_tokens_s: float = 0.0
    cached_tokens_s: float = 0.0
    """Of those, the ones that a prefix cache had."""
    output_tokens_s: float = 0.0
    refused_s: float = 0.0
    ttft_p99_s: float | None = None
    itl_p99_s: float | None = None
    queue_p99_s: float | None = None
    running: int = 0
    """Requests that have not ended, wherever they are."""
    unplaced: int = 0
    """Of those, the ones that wait at an ingress for a replica."""
    replicas: Mapping[int, ReplicaLoad] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Requests that no replica computes yet."""
        return self.unplaced + sum(replica.waiting for replica in self.replicas.values())

    @property
    def offered_s(self) -> float:
        """Requests a second, with those that were sent away."""
        return self.requests_s + self.refused_s

    @property
    def sound(self) -> bool:
        """Whether every figure is a number."""
        figures = [self.requests_s, self.prompt_tokens_s, self.cached_tokens_s, self.output_tokens_s, self.refused_s]
        figures += [seconds for seconds in (self.ttft_p99_s, self.itl_p99_s, self.queue_p99_s) if seconds is not None]
        return all(map(math.isfinite, figures))


def load_of(messages: Sequence[Mapping[str, Any]]) -> Load:
    """Of the newest "traffic" message of each ingress."""
    standing: dict[int, ReplicaLoad] = {}
    for message in messages:
        for name, seen in message["replicas"].items():
            found = ReplicaLoad(**seen)
            known = standing.get(int(name))
            if known is None or STATES.index(found.state) > STATES.index(known.state):
                standing[int(name)] = found

    def total(name: str) -> float:
        return float(sum(m[name] for m in messages))

    def longest(name: str) -> float | None:
        known = [float(m[name]) for m in messages if m[name] is not None]
        return next((s for s in known if math.isnan(s)), max(known, default=None))

    return Load(
        requests_s=total("requests_s"),
        prompt_tokens_s=total("prompt_tokens_s"),
        cached_tokens_s=total("cached_tokens_s"),
        output_tokens_s=total("output_tokens_s"),
        refused_s=total("refused_s"),
        ttft_p99_s=longest("ttft_p99_s"),
        itl_p99_s=longest("itl_p99_s"),
        queue_p99_s=longest("queue_p99_s"),
        running=int(total("running")),
        unplaced=int(total("unplaced")),
        replicas=standing,
    )
