"""Observations from what ranks report, or from what their counters have grown by; what is no number is left out, and said.

reports   rank 0, rank 1, …  of each step ─┐
                                            ├──▶ Observation: mean seconds by phase and bytes by axis, per rank
counters  {(rank, phase): seconds}, steps ─┘
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rayplane.spec.observation import Observation, RankMeans
from rayplane.spec.report import PHASES, StepReport

Place = tuple[int, int, int]
"""replica, stage, rank."""


@dataclass(frozen=True, slots=True)
class Increases:
    """By how much counters have grown in a window: by a rank's place and phase, or mesh axis."""

    steps: float
    seconds: Mapping[tuple[Place, str], float]
    sent: Mapping[tuple[Place, str], float] = field(default_factory=dict)


def of_reports(reports: Iterable[StepReport], window: int = 0) -> Observation:
    """The mean of each rank's newest `window` steps; of all when 0. The first step of a rank warms up and does not count."""
    by_place: dict[Place, list[StepReport]] = {}
    for report in sorted(reports, key=lambda r: r.step):
        by_place.setdefault((report.replica, report.stage, report.rank), []).append(report)
    kept = {place: (of[1:] if len(of) > 1 else of)[-window:] for place, of in by_place.items()}
    seconds: dict[tuple[Place, str], float] = {}
    sent: dict[tuple[Place, str], float] = {}
    steps = max((len(of) for of in kept.values()), default=0)
    for place, of in kept.items():
        for name in dict.fromkeys(name for report in of for name in report.phases):
            seconds[place, name] = steps * _mean(report.phases.get(name, 0.0) for report in of)
        for axis in dict.fromkeys(axis for report in of for axis in report.comm_bytes):
            sent[place, axis] = steps * _mean(float(report.comm_bytes.get(axis, 0)) for report in of)
    return of_increases(Increases(steps, seconds, sent))


def of_increases(grown: Increases) -> Observation:
    """Means per step. Raises nothing: a window without steps is an observation without ranks."""
    if not (math.isfinite(grown.steps) and grown.steps > 0):
        return Observation(0.0, (), ("no step was finished in the window",))
    ignored: list[str] = []
    phases, sent = (_means(values, grown.steps, ignored) for values in (grown.seconds, grown.sent))
    ranks = tuple(RankMeans(*place, of, sent.get(place, {})) for place, of in sorted(phases.items()))
    return Observation(grown.steps, ranks, (*ignored, *_unknown(phases)))


def _means(values: Mapping[tuple[Place, str], float], steps: float, ignored: list[str]) -> dict[Place, dict[str, float]]:
    out: dict[Place, dict[str, float]] = {}
    for ((replica, stage, rank), name), value in values.items():
        if math.isfinite(value) and value >= 0:
            out.setdefault((replica, stage, rank), {})[name] = value / steps
        else:
            ignored.append(f"rank {rank}: {name} is {value:g}")
    return out


def _unknown(phases: Mapping[Place, Mapping[str, float]]) -> list[str]:
    """Phases that this version does not know."""
    names = Counter(name for of in phases.values() for name in of if name not in PHASES)
    return [f"phase {name} of {count} ranks is not known" for name, count in names.items()]


def _mean(values: Iterable[float]) -> float:
    of = list(values)
    return sum(of) / len(of)
