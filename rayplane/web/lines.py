"""One number changed, and what follows: lines over its values, the lowest point marked, and a cross where there is none.

│  ●
│    ╲      ╱●
│      ●──●        the ring is at the turning point
└──1──2──4──8──×─
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rayplane.web.markup import Markup, tag
from rayplane.web.palette import colours
from rayplane.web.svg import across, every, grid, plot
from rayplane.web.units import TIMES

HEIGHT, LABELS = 190, 12
LONG = 5
"""Labels of more letters than this are written aslant."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a value for every place on the axis, None where there is none."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """What stands along the lines: the places' labels, the axis's name, and notes for places without a value."""

    x_name: str
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    unit: Callable[[float], str]
    tick: Callable[[float], str]
    """A round value, shorter than `unit` would write it."""
    joined: bool = True
    """Whether places are in an order, so that a line between them means something."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is said of a place: where the line turns."""

    index: int
    text: str


def lines(label: str, axes: Axes, main: Series, others: Sequence[Series] = (), mark: Mark | None = None) -> Markup:
    """`main` is drawn bold with its mark; `others` thin under it."""
    all_series = (*others, main)
    top = 1.22 * max((v for s in all_series for v in s.values if v is not None), default=0.0) or 1.0
    colour = colours(s.name for s in others) | {main.name: "ink"}

    def y_of(value: float) -> float:
        return HEIGHT - (HEIGHT - 14) * value / top

    drawn = [_line(s, axes, y_of, f"{colour[s.name]}{' main' if s is main else ''}") for s in all_series]
    slant = any(len(text) > LONG for text in axes.labels)
    below = 46 + 4 * min(max(map(len, axes.labels)), 13) if slant else 40
    title = tag("text", axes.x_name, x="50%", y=HEIGHT + below - 6, text_anchor="middle", class_="axis")
    marked = _mark(main, mark, y_of) if mark else None
    ground = (grid(top, HEIGHT, y_of, axes.tick), _missing(axes, main))
    return plot(HEIGHT + below, label, *ground, drawn, marked, _labels(axes, slant), title)


def lowest(series: Series) -> int | None:
    """Where the line is lowest: the first of equal ones; None when it has no point."""
    known = [(value, i) for i, value in enumerate(series.values) if value is not None]
    return min(known)[1] if known else None


def _place(index: int, count: int) -> str:
    return across((index + 0.5) / count)


def _line(series: Series, axes: Axes, y_of: Callable[[float], float], style: str) -> Markup:
    """Dots, and lines between neighbours; over a missing place it is dashed."""
    known = [(i, value) for i, value in enumerate(series.values) if value is not None]
    count = len(series.values)
    pieces = []
    for (i, value), (j, other) in pairwise(known if axes.joined else ()):
        gap = "gap" if j > i + 1 else None
        y1, y2 = round(y_of(value), 1), round(y_of(other), 1)
        pieces.append(tag("line", x1=_place(i, count), x2=_place(j, count), y1=y1, y2=y2, class_=gap))
    for i, value in known:
        title = tag("title", f"{axes.x_name} {axes.labels[i]}: {series.name} {axes.unit(value)}")
        pieces.append(
            tag(
                "g",
                title,
                tag("circle", cx=_place(i, count), cy=round(y_of(value), 1), r=4 if "main" in style else 2.5 if axes.joined else 3.5),
            )
        )
    return tag("g", pieces, class_=f"series {style}")


def _mark(series: Series, mark: Mark, y_of: Callable[[float], float]) -> Markup:
    value, x = series.values[mark.index], _place(mark.index, len(series.values))
    assert value is not None
    share = (mark.index + 0.5) / len(series.values)
    anchor = "start" if share < 0.25 else "end" if share > 0.75 else "middle"
    y = round(y_of(value), 1)
    return tag(
        "g",
        tag("line", x1=x, x2=x, y1=16, y2=HEIGHT, class_="turn"),
        tag("circle", cx=x, cy=y, r=8, class_="ring"),
        tag("text", mark.text, x=x, y=10, text_anchor=anchor, class_="best"),
    )


def _missing(axes: Axes, main: Series) -> list[Markup]:
    gone = [i for i, value in enumerate(main.values) if value is None]
    said = [(i, tag("title", f"{axes.x_name} {axes.labels[i]}: {axes.notes[i] or 'no such layout'}")) for i in gone]
    count = len(main.values)
    return [
        tag("g", title, tag("text", TIMES, x=_place(i, count), y=HEIGHT - 6, text_anchor="middle", class_="missing"))
        for i, title in said
    ]


def _labels(axes: Axes, slant: bool) -> list[Markup]:
    step, count = every(len(axes.labels), LABELS), len(axes.labels)
    out = []
    for i, text in enumerate(axes.labels):
        if i % step:
            continue
        if not slant:
            out.append(tag("text", text, x=_place(i, count), y=HEIGHT + 16, text_anchor="middle", class_="tick"))
            continue
        turned = tag("text", text, text_anchor="end", transform="rotate(-35)", class_="tick")
        out.append(tag("svg", turned, x=_place(i, count), y=HEIGHT + 14, overflow="visible"))
    return out
