"""Parts that are stacked: a strip for one whole beside others of the same scale, and columns under the line of a capacity.

strip     ████▓▓▓░░           one layout's step, on the scale of the slowest

columns   ── ── ── ──         each stage's device
          ▓▓ ▓▓
          ██ ██ ▓▓ ▓▓
          0  1  2  3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from rayplane.web.markup import Markup, tag
from rayplane.web.palette import colours
from rayplane.web.svg import across, every, grid, plot
from rayplane.web.units import size

HEIGHT, BELOW, LABELS = 240, 40, 16


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a whole, with what is said of it."""

    name: str
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """A stack of bytes under a capacity."""

    name: str
    label: str
    """Under the axis."""
    parts: tuple[tuple[str, int], ...]
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        """Of all parts."""
        return sum(value for _, value in self.parts)


def strip(label: str, parts: Sequence[Part], full: float, colour: dict[str, str], mark: float | None = None) -> Markup:
    """One bar of stacked parts, `full` being the whole width; a dashed line at `mark`."""
    drawn, start = [], 0.0
    for part in parts:
        share = max(part.value, 0.0) / (full or 1.0)
        bar = tag("rect", x=across(start), y=0, width=across(share), height=20, class_=colour[part.name])
        drawn.append(tag("g", tag("title", f"{part.name}: {part.text}"), bar))
        start += share
    if mark is not None:
        x = across(mark / (full or 1.0))
        drawn.append(tag("line", x1=x, x2=x, y1=-3, y2=23, class_="limit"))
    return plot(20, label, drawn, style="strip")


def columns(label: str, axis: str, stacks: Sequence[Column]) -> Markup:
    """Memory side by side: `axis` names what the columns are."""
    colour = colours(name for column in stacks for name, _ in column.parts)
    top = 1.06 * max((max(c.total_bytes, c.capacity_bytes) for c in stacks), default=1)

    def y_of(value: float) -> float:
        return HEIGHT - (HEIGHT - 12) * value / top

    drawn = [_column(i, len(stacks), column, colour, y_of(0) - y_of(1)) for i, column in enumerate(stacks)]
    step = every(len(stacks), LABELS)
    names = [
        tag("text", c.label, x=across((i + 0.5) / len(stacks)), y=HEIGHT + 16, text_anchor="middle", class_="tick")
        for i, c in enumerate(stacks)
        if i % step == 0
    ]
    title = tag("text", axis, x="50%", y=HEIGHT + 34, text_anchor="middle", class_="axis")
    return plot(HEIGHT + BELOW, label, grid(top, HEIGHT, y_of, size), drawn, _limits(stacks, y_of), names, title)


def _column(index: int, count: int, column: Column, colour: dict[str, str], pixels: float) -> Markup:
    """One stack, of `pixels` a byte."""
    slot = 1 / count
    width = min(0.12, 0.78 * slot)
    left, base, pieces = (index + 0.5) * slot - width / 2, float(HEIGHT), []
    for name, value in column.parts:
        base -= value * pixels
        height = round(value * pixels, 2)
        pieces.append(tag("rect", x=across(left), y=round(base, 2), width=across(width), height=height, class_=colour[name]))
    said = ", ".join(f"{name} {size(value)}" for name, value in column.parts)
    title = f"{column.name}: {size(column.total_bytes)} of {size(column.capacity_bytes)}: {said}"
    return tag("g", tag("title", title), pieces)


def _limits(stacks: Sequence[Column], y_of: Callable[[float], float]) -> list[Markup]:
    """The capacity over each run of columns that have the same."""
    out, first = [], 0
    for capacity, run in groupby(c.capacity_bytes for c in stacks):
        last = first + len(list(run))
        y = round(y_of(capacity), 2)
        out.append(tag("line", x1=across(first / len(stacks)), x2=across(last / len(stacks)), y1=y, y2=y, class_="limit"))
        first = last
    return out
