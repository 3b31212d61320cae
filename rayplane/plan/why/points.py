"""The points of a sweep: a layout that was priced, or the reason why there is none."""

from __future__ import annotations

from rayplane.plan.why.explanation import Point
from rayplane.plan.why.study import Study, lack
from rayplane.plan.why.waterfalls import stacked
from rayplane.spec.plan import Candidate


def point(of: Study, x: float, label: str, candidate: Candidate | None, missing: str = "no such layout fits") -> Point:
    """Of a layout, which may not fit."""
    if candidate is None:
        return Point(x, label, None, None, (), None, None, missing)
    e, reason = candidate.estimate, lack(candidate, of.pricer.device_bytes)
    if reason:
        return Point(x, label, candidate.layout, None, (), None, e.memory_bytes, reason)
    note = "tight" if e.verdict == "tight" else ""
    return Point(x, label, candidate.layout, e.step_s, stacked(candidate), e.bubble, e.memory_bytes, note)


def fastest(points: tuple[Point, ...]) -> Point | None:
    """The shortest step; a tight one is behind all that fit."""
    ran = [p for p in points if p.step_s is not None]
    return min(ran, key=lambda p: (p.note.startswith("tight"), p.step_s or 0.0), default=None)


def powers(limit: int) -> list[int]:
    """1, 2, 4, … up to a limit."""
    return [1 << i for i in range(max(1, limit).bit_length())]
