"""One number changed at a time: a line, its turning point, and the sentence that follows from it."""

from __future__ import annotations

from rayplane.plan.choice.report import seconds
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.why.explanation import Explanation, Sweep
from rayplane.web.lines import lines
from rayplane.web.markup import Markup, tag
from rayplane.web.palette import colours
from rayplane.web.sections.parts import block, visible
from rayplane.web.sections.sweep_lines import drawing
from rayplane.web.svg import legend
from rayplane.web.table import numbers
from rayplane.web.units import NOTHING, percent


def sweeps(explanation: Explanation) -> Markup | None:
    """All sweeps, two in a row where there is room."""
    if not explanation.sweeps:
        return None
    lead = (
        "The bold line is the whole, thin ones the terms that change most. A cross stands where there is no layout, or none that fits."
    )
    return block("sweeps", "What if it were cut otherwise", lead, tag("div", map(_sweep, explanation.sweeps), class_="cards"))


def _sweep(sweep: Sweep) -> Markup:
    drawn = drawing(sweep)
    picture = lines(f"{sweep.question} {sweep.finding}", drawn.axes, drawn.main, drawn.others, drawn.mark)
    colour = colours(s.name for s in drawn.others)
    noted = [(p.label, p.note) for p in sweep.points if p.note]
    notes = tag("ul", (tag("li", tag("b", label), f": {note}") for label, note in noted), class_="missing-notes") if noted else None
    return tag(
        "article",
        tag("h3", sweep.finding or sweep.question, class_="finding"),
        tag("p", sweep.question, class_="question") if sweep.finding else None,
        legend([(drawn.main.name, "ink"), *((s.name, colour[s.name]) for s in drawn.others)]),
        tag("figure", picture),
        notes,
        _numbers(sweep),
        id=f"sweep-{sweep.name}",
    )


def _numbers(sweep: Sweep) -> Markup:
    rows = (
        (
            p.label,
            str(p.layout) if p.layout else NOTHING,
            seconds(p.step_s) if p.step_s is not None else NOTHING,
            percent(p.bubble) if p.bubble is not None else NOTHING,
            gigabytes(p.memory_bytes) if p.memory_bytes is not None else NOTHING,
            ", ".join(f"{name} {seconds(value)}" for name, value in visible(p.terms)) or p.note,
        )
        for p in sweep.points
    )
    return numbers(sweep.question, (sweep.x_name, "layout", sweep.y_name, "bubble", "memory", "terms"), rows, words=(0, 1, 5))
