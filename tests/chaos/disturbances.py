"""What happens to a job, and when: a seed becomes a script, without a clock or a process.

kill     a rank, with SIGKILL; `after_s` 0 strikes while the job still recovers from what came before
pause    SIGSTOP, and SIGCONT after `lasts_s`
stop     SIGSTOP for good
actor    a stage actor, with SIGKILL
driver   the command itself, with SIGKILL; it is run again
disk     the job's folder is full until the command gives up; then there is room, and it is run again
node     a machine is gone for `lasts_s`
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

LATEST_S = 1.5
AT_ONCE = 0.4
"""Share of the kills that do not wait until the job works again."""
LASTS_S = {"pause": (0.1, 0.8), "node": (0.5, 4.0)}
REPLACED = ("kill", "stop", "actor", "node")
"""Kinds after which the same driver starts ranks anew."""
PACE_S = 9.0
"""What a disturbance takes, recovery included."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One strike."""

    after_s: float
    """Since the job works again."""
    what: str
    whom: float
    """Which of those that are there: a share of their number."""
    lasts_s: float = 0.0

    def choose(self, there: list[int]) -> int:
        """One of these."""
        return there[int(self.whom * len(there))]


def script(seed: int, kinds: tuple[str, ...], count: int) -> tuple[Disturbance, ...]:
    """Each kind once and others up to `count`, in any order; the first is no kill at once, for nothing has come before it."""
    draw = random.Random(f"{seed} {kinds}")
    what = [*kinds, *draw.choices(kinds, k=max(0, count - len(kinds)))]
    draw.shuffle(what)
    strikes = (_strike(draw, kind, first=i == 0) for i, kind in enumerate(what))
    return tuple(strikes)


def _strike(draw: random.Random, kind: str, first: bool) -> Disturbance:
    at_once = kind == "kill" and not first and draw.random() < AT_ONCE
    after_s = 0.0 if at_once else draw.uniform(0.1, LATEST_S)
    low_s, high_s = LASTS_S.get(kind, (0.0, 0.0))
    return Disturbance(round(after_s, 3), kind, draw.random(), round(draw.uniform(low_s, high_s), 3))


def restarts(strikes: tuple[Disturbance, ...]) -> tuple[int, int]:
    """(fewest, most) restarts that they can cost.

    What strikes at once may fall into the recovery before it, and a pause may last too long where the machine is busy.
    """
    due = [s for s in strikes if s.what in REPLACED]
    return sum(s.after_s > 0 for s in due), len(due) + sum(s.what == "pause" for s in strikes)


@dataclass(frozen=True, slots=True)
class Terms:
    """Of a chaos run."""

    seed: int
    minutes: float
    """0: the short form, each kind once or twice."""

    def script(self, kinds: tuple[str, ...], short: int, share: float) -> tuple[Disturbance, ...]:
        """With `short` strikes, or for a share of the minutes."""
        return script(self.seed, kinds, max(short, int(self.minutes * 60 * share / PACE_S)))


def terms() -> Terms:
    """As `make chaos` sets them: the long form draws a seed where none is given."""
    minutes = float(os.environ.get("CHAOS_MINUTES") or 0)
    seed = os.environ.get("CHAOS_SEED") or (random.randrange(10**6) if minutes else 5)
    return Terms(int(seed), minutes)
