"""Whether a running job should move to another arrangement: a pure decision on what was measured and what the planner sees.

    gain per step      a share of at least LEAST_GAIN of the step; for other degrees LEAST_GAIN_OTHER
    gain x steps left  more than moving costs, as measured of this job's own moves
    sure               AGREE times in a row; not within the cool-down after a move, which doubles with every move that did not keep
                       half of what it promised
    within             limits.min_devices and max_devices
    first              what keeps the degrees, then anything else

How far the planner is off for a layout that has run is remembered as a ratio, and its promises are multiplied by that; a layout that
has not run yet is off as the present one is. So under constant conditions no layout is tried twice on the same false hope.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rayplane.control.outlook import Outlook
from rayplane.control.state import Arrangement
from rayplane.spec.layout import Layout

LEAST_GAIN, LEAST_GAIN_OTHER = 0.05, 0.10
AGREE = 2
COOL_DOWN_S = 60.0
KEPT = 0.5
"""A move that saves less than this share of what it promised has disappointed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the job is."""

    now_s: float
    arrangement: Arrangement
    step_s: float
    """As measured under it."""
    steps_left: int
    cost_s: float
    """Of a move."""
    least: int
    """Devices that the job has to have."""
    most: int | None = None
    """Devices that it may have; None: all that there are."""

    @property
    def left_s(self) -> float:
        """Until its end, if nothing changes."""
        return self.steps_left * self.step_s


@dataclass(frozen=True, slots=True)
class Bet:
    """A move that was made: what a step took before, and what it promised."""

    layout: Layout
    before_s: float
    promised_s: float


@dataclass(frozen=True, slots=True)
class Experience:
    """What earlier decisions have taught."""

    off: Mapping[Layout, float] = field(default_factory=dict)
    """Measured over predicted step, of layouts that have run."""
    bet: Bet | None = None
    disappointed: int = 0
    moved_s: float = -math.inf
    agreed: int = 0
    """Times in a row that a move seemed to pay."""

    @property
    def cool_down_s(self) -> float:
        """After a move."""
        return COOL_DOWN_S * 2.0**self.disappointed


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why; stay where `to` is None."""

    to: Arrangement | None
    why: str


def undecided(of: Experience) -> Experience:
    """After something that says neither yes nor no."""
    return replace(of, agreed=0)


def pointless(of: Experience, at: Standing) -> str:
    """Why the planner need not even be asked; empty where it should be."""
    if at.now_s - of.moved_s < of.cool_down_s:
        return f"the last move is less than {of.cool_down_s:g} s ago"
    if not at.left_s > at.cost_s:
        return f"{max(0.0, at.left_s):.3g} s are left, and moving takes {at.cost_s:.3g} s"
    return ""


def decide(of: Experience, at: Standing, seen: Outlook) -> tuple[Experience, Decision]:
    """Stay or move."""
    if not all(math.isfinite(s) and s > 0 for s in (at.step_s, seen.step_s)) or not math.isfinite(at.cost_s):
        return undecided(of), Decision(None, "the step has no length")
    of = _learned(of, at, seen)
    if reason := pointless(of, at):
        return undecided(of), Decision(None, reason)
    for found, least_gain in ((seen.cheap, LEAST_GAIN), (seen.other, LEAST_GAIN_OTHER)):
        if found and (step_s := _pays(of, at, found, least_gain)):
            return _agree(of, at, replace(found, step_s=step_s))
    return undecided(of), Decision(None, "nothing better")


def _learned(of: Experience, at: Standing, seen: Outlook) -> Experience:
    """How far predictions of what runs are off, and whether the last move has kept its promise."""
    layout = at.arrangement.layout
    of = replace(of, off={**of.off, layout: at.step_s / seen.step_s})
    if not of.bet:
        return of
    bet = of.bet
    kept = bet.layout != layout or bet.before_s - at.step_s >= KEPT * (bet.before_s - bet.promised_s)
    return replace(of, bet=None, disappointed=of.disappointed + (not kept))


def _pays(of: Experience, at: Standing, found: Arrangement, least_gain: float) -> float:
    """Seconds of a step under another arrangement, where moving there pays, else 0."""
    layout, now = found.layout, at.arrangement.layout
    step_s = found.step_s * of.off.get(layout, of.off[now])
    gain_s = at.step_s - step_s
    allowed = at.least <= layout.size <= (at.most or layout.size) and layout != now and math.isfinite(step_s) and step_s > 0
    return step_s if allowed and gain_s >= least_gain * at.step_s and gain_s * at.steps_left > at.cost_s else 0.0


def _agree(of: Experience, at: Standing, found: Arrangement) -> tuple[Experience, Decision]:
    gain_s = at.step_s - found.step_s
    why = (
        f"a step should take {found.step_s:.3g} s, not {at.step_s:.3g} s, which saves {gain_s * at.steps_left:.3g} s of "
        f"{at.left_s:.3g} s, and moving takes {at.cost_s:.3g} s"
    )
    if of.agreed + 1 < AGREE:
        return replace(of, agreed=of.agreed + 1), Decision(None, f"to be seen again: {why}")
    moved = replace(of, agreed=0, moved_s=at.now_s, bet=Bet(found.layout, at.step_s, found.step_s))
    return moved, Decision(found, why)
