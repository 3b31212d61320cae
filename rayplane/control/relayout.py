"""Whether a service should be cut otherwise, by what its requests meet and by what the planner would choose. No clock, no process.

| what is seen, for how long                                    | what the planner has to say       | what follows                 |
|---------------------------------------------------------------|-----------------------------------|------------------------------|
| limits broken at most replicas, PRESSED_S                     | another layout would hold them,   | it moves                     |
|                                                               | this one would not                |                              |
| p99 far below them, LARGE_S                                   | another layout holds the highest  | it moves                     |
|                                                               | load of that time with SAVING of  |                              |
|                                                               | the fewest devices of this one    |                              |
| either                                                        | anything else                     | asked again after ASK_S      |
| figures are missing or no numbers; replicas start or drain    |                                   | every wait begins anew       |

After a move nothing follows for patience_s, which doubles each time the service goes back to where it came from within FLAP_S.
After one that was given up nothing follows for GIVEN_UP_S.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rayplane.control.autoscale import Limits, pressed, relaxed
from rayplane.control.load import Load
from rayplane.control.way import Way

PRESSED_S = 90.0
LARGE_S = 1800.0
ASK_S = 120.0
"""A search takes seconds."""
SAVING = 0.7
REST_S, MAX_REST_S = 600.0, 14400.0
FLAP_S = 28800.0
GIVEN_UP_S = 21600.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What the planner says of a load."""

    way: Way
    replicas: int
    present_devices: int | None
    """The fewest with which the present way holds it; None where it does not with all that there may be."""

    @property
    def devices(self) -> int:
        """What it costs."""
        return self.way.devices * self.replicas


Ask = Callable[[Load, Way], Offer | None]
"""The way with the fewest devices that holds a load, beside the present one; None where none holds it."""


@dataclass(frozen=True, slots=True)
class Mover:
    """Where the policy stands; times are those of the caller's clock."""

    pressed_since_s: float | None = None
    large_since_s: float | None = None
    peak: Load | None = None
    """The highest load since then."""
    asked_s: float = -math.inf
    came_from: Way | None = None
    moved_s: float = -math.inf
    patience_s: float = REST_S
    rest_until_s: float = -math.inf


def watched(mover: Mover, load: Load | None, at_most: bool, now_s: float, limits: Limits) -> Mover:
    """The standing after a look at the load. `at_most`: as many replicas serve as there may be; load None: nothing can be said."""
    if load is None or not load.sound:
        return replace(mover, pressed_since_s=None, large_since_s=None, peak=None)
    # Without limits any layout holds whatever comes: a queue that never ends, such as a batch's, says nothing against the present one.
    limited = math.isfinite(limits.ttft_s) or math.isfinite(limits.itl_s)
    is_pressed = limited and at_most and pressed(load, limits)
    is_large = limited and load.requests_s > 0 and relaxed(load, limits)
    largest = load if mover.peak is None or _tokens_s(load) > _tokens_s(mover.peak) else mover.peak
    return replace(
        mover,
        pressed_since_s=(mover.pressed_since_s if mover.pressed_since_s is not None else now_s) if is_pressed else None,
        large_since_s=(mover.large_since_s if mover.large_since_s is not None else now_s) if is_large else None,
        peak=largest if is_large else None,
    )


def question(mover: Mover, load: Load, now_s: float) -> Load | None:
    """The load for which the planner should be asked now, if any."""
    if now_s < mover.rest_until_s or now_s - mover.asked_s < ASK_S:
        return None
    if _lasts(mover.pressed_since_s, PRESSED_S, now_s):
        return load
    return mover.peak if _lasts(mover.large_since_s, LARGE_S, now_s) else None


def asked(mover: Mover, now_s: float) -> Mover:
    """The planner is asked."""
    return replace(mover, asked_s=now_s)


def better(mover: Mover, offer: Offer | None, present: Way) -> bool:
    """Whether the service should move. The answer may come late: what it was asked for has to be so still."""
    if offer is None or offer.way == present:
        return False
    if mover.pressed_since_s is not None:
        return offer.present_devices is None
    if mover.large_since_s is not None and offer.present_devices is not None:
        return offer.devices <= SAVING * offer.present_devices
    return False


def moving(mover: Mover, present: Way, to: Way, now_s: float) -> Mover:
    """It leaves the present way for another."""
    back = to == mover.came_from and now_s - mover.moved_s < FLAP_S
    patience_s = min(2 * mover.patience_s, MAX_REST_S) if back else REST_S
    return Mover(asked_s=now_s, came_from=present, moved_s=now_s, patience_s=patience_s, rest_until_s=now_s + patience_s)


def stayed(mover: Mover, now_s: float) -> Mover:
    """The move was given up."""
    return replace(mover, rest_until_s=now_s + GIVEN_UP_S)


def _tokens_s(load: Load) -> float:
    """What is asked, in tokens; what was sent away counts like the rest."""
    each = (load.prompt_tokens_s - load.cached_tokens_s + load.output_tokens_s) / load.requests_s if load.requests_s else 0.0
    return each * load.offered_s


def _lasts(since_s: float | None, for_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= for_s
