"""What pictures share: a plot as wide as its page whose text keeps its size, ticks at round numbers, a legend.

Across, places are shares of the width (percent), so that one drawing serves a wide screen and a narrow one; down, they are pixels.
Axis labels stand left of 0, in the margin that the style sheet leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, floor, log10

from rayplane.web.markup import Child, Markup, tag


def plot(height: float, label: str, *children: Child | Iterable[Child], style: str = "") -> Markup:
    """A picture; `label` says in words what it shows."""
    return tag("svg", *children, class_=f"plot {style}".strip(), height=round(height), role="img", aria_label=label)


def across(share: float) -> str:
    """A place or a width, as a share of the plot's."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def ticks(top: float, most: int = 5) -> tuple[float, ...]:
    """Round numbers from 0 to `top`: steps of 1, 2 or 5 of a power of ten."""
    if top <= 0:
        return (0.0,)
    rough = top / most
    power = 10 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return tuple(i * step for i in range(floor(top / step * 1.0001) + 1))


def grid(top: float, height: float, y_of: Callable[[float], float], name: Callable[[float], str]) -> list[Markup]:
    """Horizontal lines at round numbers, with their labels."""
    lines = []
    for value in ticks(top, 4 if height < 200 else 5):
        y = round(y_of(value), 1)
        lines.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid" if value else "base"))
        lines.append(tag("text", name(value) if value else "0", x=-8, y=y, dy="0.35em", text_anchor="end", class_="tick"))
    return lines


def every(count: int, most: int) -> int:
    """Label each how manieth of `count`, that there are at most `most`: 1, 2, 4, 8 …"""
    step = 1
    while ceil(count / step) > most:
        step *= 2
    return step


def legend(names: Iterable[tuple[str, str]]) -> Markup:
    """(name, colour) in a row."""
    return tag("ul", (tag("li", tag("i", class_=f"swatch {colour}"), name) for name, colour in names), class_="legend")
