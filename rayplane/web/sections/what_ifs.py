"""The cluster changed: what the same layout would take there, and what the planner would choose instead."""

from __future__ import annotations

from rayplane.plan.choice.report import seconds
from rayplane.plan.why.explanation import Explanation, WhatIf
from rayplane.web.bars import Part, strip
from rayplane.web.markup import Child, Markup, tag
from rayplane.web.sections.parts import block
from rayplane.web.units import against

_SAME, _BEST = "the same layout", "the best layout"
_COLOUR = {_SAME: "sky", _BEST: "blue"}


def what_ifs(explanation: Explanation) -> Markup | None:
    """A row per change, on one scale."""
    if not explanation.what_ifs:
        return None
    now_s = explanation.plan.estimate.step_s
    known = (s for w in explanation.what_ifs for s in (w.same_layout_s, w.best_s) if s is not None)
    full = max((now_s, *known))
    lead = f"The dashed line is today's step, {seconds(now_s)}. Under each change: the same layout, and the best one."
    changes = tag("ul", (_change(w, now_s, full) for w in explanation.what_ifs), class_="changes")
    return block("what-ifs", "What if the cluster were another", lead, changes)


def _change(what_if: WhatIf, now_s: float, full: float) -> Markup:
    best = tag("span", "best: ", tag("span", str(what_if.best), class_="layout")) if what_if.best else "best layout"
    rows = (_row(_SAME, _SAME, what_if.same_layout_s, now_s, full), _row(_BEST, best, what_if.best_s, now_s, full))
    words = tag("div", tag("h3", what_if.change), tag("p", what_if.meaning, class_="soft small"))
    return tag("li", words, tag("div", tag("p", what_if.finding), tag("div", rows, class_="outcomes")))


def _row(name: str, words: Child, value: float | None, now_s: float, full: float) -> Markup:
    """What runs, its seconds, and a bar of them under today's line."""
    if value is None:
        return tag("div", tag("p", words, tag("span", "cannot run", class_="soft")))
    said = (tag("b", seconds(value)), tag("span", against(value, now_s), class_="soft"))
    bar = strip(f"{name}: {seconds(value)}", [Part(name, value, seconds(value))], full, _COLOUR, mark=now_s)
    return tag("div", tag("p", words, said), bar)
