"""Which lines a sweep is drawn as.

microbatches   the idle share of the pipe, for the work itself grows along the axis
cp-or-tp       two lines over the context, the first word of its labels: with cp and without, marked from where cp is the faster
anything else  the whole step, marked where it is the fastest, beside the terms that change most; joined where x is in order
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rayplane.plan.choice.report import seconds
from rayplane.plan.why.explanation import Point, Sweep
from rayplane.web.lines import Axes, Mark, Series, lowest
from rayplane.web.units import percent, round_percent, round_seconds

OTHERS = 3
"""Terms that are drawn beside the whole."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What `lines` is given."""

    axes: Axes
    main: Series
    others: tuple[Series, ...]
    mark: Mark | None


def drawing(sweep: Sweep) -> Drawing:
    """How a sweep is drawn."""
    if sweep.name == "microbatches":
        return _idle(sweep)
    if sweep.name == "cp-or-tp":
        return _with_and_without(sweep)
    points = sweep.points
    whole = Series(f"whole {sweep.y_name}", tuple(p.step_s for p in points))
    joined = all(a.x < b.x for a, b in pairwise(points))
    axes = Axes(sweep.x_name, tuple(p.label for p in points), tuple(p.note for p in points), seconds, round_seconds, joined)
    best = lowest(whole)
    mark = None if best is None else Mark(best, f"best {seconds(points[best].step_s or 0.0)}")
    return Drawing(axes, whole, tuple(_terms(points)), mark)


def _idle(sweep: Sweep) -> Drawing:
    points = sweep.points
    labels, notes = tuple(p.label for p in points), tuple(p.note for p in points)
    axes = Axes(sweep.x_name, labels, notes, percent, round_percent)
    return Drawing(axes, Series("idle share of the pipe", tuple(p.bubble for p in points)), (), None)


def _with_and_without(sweep: Sweep) -> Drawing:
    places = sorted({p.x for p in sweep.points})
    groups = [[p for p in sweep.points if p.x == x] for x in places]
    labels = tuple(group[0].label.split()[0] for group in groups)
    cut = [next((p for p in group if _is_cut(p)), None) for group in groups]
    whole = [next((p for p in group if p.layout is not None and not _is_cut(p)), None) for group in groups]
    notes = tuple("" if p else next((q.note for q in group if q.step_s is None), "") for p, group in zip(cut, groups, strict=True))
    with_cp, without = Series("with cp", _seconds(cut)), Series("without", _seconds(whole))
    both = enumerate(zip(with_cp.values, without.values, strict=True))
    pays = next((i for i, (a, b) in both if a is not None and (b is None or a < b)), None)
    axes = Axes(sweep.x_name, labels, notes, seconds, round_seconds)
    return Drawing(axes, with_cp, (without,), None if pays is None else Mark(pays, "cp pays from here"))


def _is_cut(point: Point) -> bool:
    return point.layout is not None and point.layout.cp > 1


def _seconds(points: Sequence[Point | None]) -> tuple[float | None, ...]:
    return tuple(p.step_s if p else None for p in points)


def _terms(points: Sequence[Point]) -> list[Series]:
    """Those whose seconds differ most along the sweep."""
    known = [dict(p.terms) for p in points if p.step_s is not None and p.terms]
    names = dict.fromkeys(name for terms in known for name in terms)
    ranges = {n: max(t.get(n, 0.0) for t in known) - min(t.get(n, 0.0) for t in known) for n in names}
    least = 0.005 * max((p.step_s or 0.0 for p in points), default=0.0)
    chosen = sorted((n for n in ranges if ranges[n] > least), key=lambda n: -ranges[n])[:OTHERS]
    return [Series(n, tuple(dict(p.terms).get(n, 0.0) if p.step_s is not None else None for p in points)) for n in chosen]
