"""A whole as parts that follow one another: each bar starts where the last one ended, and the last row is the sum.

compute   ██████████          2.10 s  70%
tp                  ███       0.60 s  20%
bubble                 █      0.30 s  10%
step      ██████████████      3.00 s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.choice.report import seconds
from rayplane.web.markup import Attribute, Markup, tag
from rayplane.web.palette import colours
from rayplane.web.svg import across, plot
from rayplane.web.units import percent

ROW = 28
"""Pixels from a row to the next."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """A row, in shares of the whole."""

    name: str
    start: float
    length: float
    colour: str
    text: str


def waterfall(label: str, terms: Sequence[tuple[str, float]], total_s: float) -> Markup:
    """Of the terms of a step, in seconds; those of no length are left out, `total_s` is the row below."""
    shown = [(name, value) for name, value in terms if value > 0]
    colour = colours(name for name, _ in shown)
    whole = max(total_s, sum(value for _, value in shown)) or 1.0
    bars, start = [], 0.0
    for name, value in shown:
        bars.append(_Bar(name, start / whole, value / whole, colour[name], f"{seconds(value)}  {percent(value / whole)}"))
        start += value
    bars.append(_Bar("step", 0.0, total_s / whole, "total", seconds(total_s)))
    said = f"{label}: {', '.join(f'{b.name} {b.text}' for b in bars)}"
    return plot(ROW * len(bars) + 4, said, [_row(i, bar) for i, bar in enumerate(bars)], _links(bars), style="named")


def _row(index: int, bar: _Bar) -> Markup:
    top, middle = ROW * index + 4, ROW * index + ROW / 2
    end = bar.start + bar.length
    text: dict[str, Attribute]
    if end < 0.7:
        text = {"x": across(end), "dx": 6}
    elif bar.start > 0.3:
        text = {"x": across(bar.start), "dx": -6, "text_anchor": "end"}
    else:
        text = {"x": across(end), "dx": -8, "text_anchor": "end", "class_": f"on-{bar.colour}"}
    return tag(
        "g",
        tag("title", f"{bar.name}: {bar.text}"),
        tag("text", bar.name, x=-8, y=middle, dy="0.35em", text_anchor="end", class_="name"),
        tag("rect", x=across(bar.start), y=top, width=across(bar.length), height=ROW - 8, class_=f"least {bar.colour}"),
        tag("text", bar.text, y=middle, dy="0.35em", **text),
    )


def _links(bars: Sequence[_Bar]) -> list[Markup]:
    """From the end of a bar down to the next, and to the sum."""
    places = [(i, bar.start + bar.length) for i, bar in enumerate(bars[:-1])]
    return [tag("line", x1=across(x), x2=across(x), y1=ROW * i + 4, y2=ROW * (i + 1) + 4, class_="link") for i, x in places]
