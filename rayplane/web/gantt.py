"""A step in time: a row per rank, a bar per Action; its script zooms, and numbers bars where there is room.

stage 0  F0 F1 .. B0 .. B1 R O          blue forward, vermilion backward, green weight gradients, purple reduction
stage 1  .. F0 B0 F1 B1 .. R O          nothing: the stage waits

EXACT     more bars than that are drawn as parts of the time instead, each filled by the share that every op took of it
NEAR      so many bars in sight or fewer the script draws one by one, wherever the reader zooms to
PACKED    more bars than that are not given to the script, so the picture does not zoom
MOST_ROWS more ranks than that share rows with their neighbours, and the picture does not zoom
"""

from __future__ import annotations

from rayplane.plan.choice.report import seconds
from rayplane.plan.step.timeline import Timeline
from rayplane.web.gantt_layers import WORDS, Ranks, Rows, bars, marks, names, shares, times
from rayplane.web.markup import Attribute, Markup, tag
from rayplane.web.palette import colour_of_op
from rayplane.web.spans import TICKS, drawn, end_of, packed
from rayplane.web.svg import legend
from rayplane.web.units import MINUS

EXACT, NEAR, PACKED, MOST_ROWS = 3000, 6000, 300_000, 128
PARTS = 16_000
"""Of all rows together."""
AXIS = 26
"""Pixels below the rows."""
_BUTTONS = (
    ("in", "+", "zoom in"),
    ("out", MINUS, "zoom out"),
    ("left", "←", "earlier"),
    ("right", "→", "later"),
    ("all", "whole step", ""),
)
_HINT = f"Click the picture, then turn the wheel, drag, or press + {MINUS} ← → and 0."


def gantt(timeline: Timeline, title: str, row: str = "stage") -> Markup:
    """The figure: buttons, legend, picture, a line that tells of the bar under the pointer, and the bars as data."""
    ranks, end_s = drawn(timeline), end_of(timeline)
    rows = Rows(row, len(ranks), -(-len(ranks) // MOST_ROWS) or 1)
    total = sum(map(len, ranks))
    exact, zooms = total <= EXACT and rows.group == 1, total <= PACKED and rows.group == 1
    num_parts = min(600, max(40, PARTS // max(rows.count, 1)))
    layer = bars(ranks, rows, end_s) if exact else shares(ranks, rows, num_parts)
    view = _view(
        layer, marks(ranks, rows) if exact else [], rows, end_s, f"{title}: {total:,} bars on {len(ranks)} {row}s in {seconds(end_s)}"
    )
    data = tag("script", Markup(packed(ranks, end_s)), type="application/json") if zooms else None
    caption = [f"{total:,} bars, drawn in parts of {seconds(end_s / num_parts)}: a part is filled as far as its {row} is busy."] * (
        not exact
    )
    caption += [_HINT] if zooms else [f"A row is of {rows.group} {row}s."] if rows.group > 1 else []
    caption += ["Near enough, every bar is drawn."] if zooms and not exact else []
    told = tag("p", " ".join(caption), class_="told", aria_live="polite")
    tools = tag("div", _buttons() if zooms else None, _legend(ranks), class_="tools")
    facts: dict[str, Attribute] = {"data_row": row, "data_pitch": rows.pitch, "data_bar": rows.bar, "data_near": NEAR}
    return tag("figure", tools, view, told, data, class_="gantt", **facts)


def _view(layer: list[Markup], numbers: list[Markup], rows: Rows, end_s: float, said: str) -> Markup:
    box = f"0 0 {TICKS} {rows.height}"
    stretched = tag("svg", layer, class_="bars", viewBox=box, preserveAspectRatio="none", width="100%", height=rows.height)
    return tag(
        "svg",
        names(rows),
        tag("g", times(end_s, rows), class_="times"),
        stretched,
        tag("g", numbers, class_="marks"),
        class_="plot view",
        height=rows.height + AXIS,
        tabindex=0,
        role="img",
        aria_label=said,
        aria_keyshortcuts="+ - ArrowLeft ArrowRight 0",
    )


def _buttons() -> Markup:
    buttons = (
        tag("button", face, type="button", data_do=do, aria_label=said or None, title=said or None) for do, face, said in _BUTTONS
    )
    return tag("span", buttons, class_="buttons")


def _legend(ranks: Ranks) -> Markup:
    """Of the ops that are there, in the order of a step."""
    present = {s.op for spans in ranks for s in spans}
    return legend([*((words, colour_of_op(op)) for op, words in WORDS.items() if op in present), ("waits", "ground")])
