"""How many replicas a service should have, by what its requests meet. No clock, no process.

| what is seen, for how long                                              | what follows                                  |
|-------------------------------------------------------------------------|-----------------------------------------------|
| requests wait, or are refused, QUEUED_S                                 | more: as many as the model says, twice at most |
| p99 above the limits, LATE_S                                            | the same                                      |
| p99 far below them, nobody waits, patience_s; one fewer would hold      | one fewer                                     |
| no requests, IDLE_S                                                     | the floor                                     |
| figures are missing or no numbers; replicas still start or drain        | nothing, and every wait begins anew           |

After a change nothing else follows for SETTLE_S: until then figures tell of the time before it. Who has to take a step back that soon
after giving one up waits twice as long before the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rayplane.control.load import Load

QUEUED_S = 10.0
LATE_S = 40.0
"""Longer than the ingress' window, so that one slow request is not enough."""
CALM_S, MAX_PATIENCE_S = 120.0, 3600.0
IDLE_S = 300.0
SETTLE_S = 35.0
"""The ingress' window, and a little."""
FLAP_S = 900.0
QUEUE_SHARE = 0.5
"""Of the limit for the first token: who waits longer for admission will be late."""
QUEUE_S = 1.0
"""The same where there is no limit."""
CALM = 0.8
"""Share of the limits below which all is well."""

Holds = Callable[[int, Load], bool]
"""Whether so many replicas would hold the limits under a load, by the planner's model."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Between which numbers, and for which times."""

    least: int
    most: int
    ttft_s: float = math.inf
    itl_s: float = math.inf

    @property
    def queue_s(self) -> float:
        """A wait that is too long."""
        return QUEUE_SHARE * self.ttft_s if math.isfinite(self.ttft_s) else QUEUE_S


@dataclass(frozen=True, slots=True)
class Scaler:
    """Where the policy stands; times are those of the caller's clock."""

    wanted: int
    queued_since_s: float | None = None
    late_since_s: float | None = None
    calm_since_s: float | None = None
    idle_since_s: float | None = None
    changed_s: float = -math.inf
    shrunk_s: float = -math.inf
    patience_s: float = CALM_S


def scale(scaler: Scaler, load: Load | None, serving: int, now_s: float, limits: Limits, holds: Holds) -> Scaler:
    """The next standing; its `wanted` is how many there should be. `serving` of them serve."""
    bounded = min(max(scaler.wanted, limits.least), limits.most)
    if bounded != scaler.wanted:
        return _changed(scaler, bounded, now_s)
    if load is None or not load.sound or serving != scaler.wanted:
        return _waiting(scaler)
    scaler = _noted(scaler, load, now_s, limits)
    if _lasts(scaler.idle_since_s, IDLE_S, now_s) and scaler.wanted > limits.least:
        return _changed(scaler, limits.least, now_s)
    if now_s - scaler.changed_s < SETTLE_S:
        return scaler
    pressed = _lasts(scaler.queued_since_s, QUEUED_S, now_s) or _lasts(scaler.late_since_s, LATE_S, now_s)
    if pressed and scaler.wanted < limits.most:
        return _grown(scaler, load, now_s, limits, holds)
    calm = _lasts(scaler.calm_since_s, scaler.patience_s, now_s)
    if calm and scaler.wanted > limits.least:
        if holds(scaler.wanted - 1, load):
            return replace(_changed(scaler, scaler.wanted - 1, now_s), shrunk_s=now_s)
        return replace(scaler, calm_since_s=now_s)  # ask again later: the model takes a moment
    return scaler


def pressed(load: Load, limits: Limits) -> bool:
    """Whether requests meet more than the limits allow, or wait."""
    return _queued(load, limits) or _late(load, limits)


def relaxed(load: Load, limits: Limits) -> bool:
    """Whether they meet far less, and nobody waits."""
    ttft_s, itl_s = load.ttft_p99_s or 0.0, load.itl_p99_s or 0.0
    return ttft_s <= CALM * limits.ttft_s and itl_s <= CALM * limits.itl_s and not _queued(load, limits)


def _queued(load: Load, limits: Limits) -> bool:
    waited = load.waiting > 0 and (load.queue_p99_s or 0.0) > limits.queue_s
    return load.refused_s > 0 or load.unplaced > 0 or waited


def _late(load: Load, limits: Limits) -> bool:
    return (load.ttft_p99_s or 0.0) > limits.ttft_s or (load.itl_p99_s or 0.0) > limits.itl_s


def _noted(scaler: Scaler, load: Load, now_s: float, limits: Limits) -> Scaler:
    """Since when what is the case."""
    idle = load.offered_s == 0 and load.running == 0
    return replace(
        scaler,
        queued_since_s=_since(scaler.queued_since_s, _queued(load, limits), now_s),
        late_since_s=_since(scaler.late_since_s, _late(load, limits), now_s),
        calm_since_s=_since(scaler.calm_since_s, relaxed(load, limits), now_s),
        idle_since_s=_since(scaler.idle_since_s, idle, now_s),
    )


def _grown(scaler: Scaler, load: Load, now_s: float, limits: Limits, holds: Holds) -> Scaler:
    wanted, most = scaler.wanted + 1, min(limits.most, 2 * scaler.wanted)
    while wanted < most and not holds(wanted, load):
        wanted += 1
    too_soon = now_s - scaler.shrunk_s < FLAP_S
    patience_s = min(2 * scaler.patience_s, MAX_PATIENCE_S) if too_soon else CALM_S
    return replace(_changed(scaler, wanted, now_s), patience_s=patience_s)


def _changed(scaler: Scaler, wanted: int, now_s: float) -> Scaler:
    return replace(_waiting(scaler), wanted=wanted, changed_s=now_s)


def _waiting(scaler: Scaler) -> Scaler:
    return replace(scaler, queued_since_s=None, late_since_s=None, calm_since_s=None, idle_since_s=None)


def _since(known_s: float | None, is_so: bool, now_s: float) -> float | None:
    if not is_so:
        return None
    return now_s if known_s is None else known_s


def _lasts(since_s: float | None, for_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= for_s
