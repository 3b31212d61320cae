"""The answer before its reasons: the layout, what it gives, whether it fits, and why it won in a sentence."""

from __future__ import annotations

from rayplane.plan.choice.report import report, seconds
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.why.explanation import Explanation
from rayplane.spec.layout import AXES
from rayplane.web.markup import Child, Markup, tag
from rayplane.web.sections.parts import chip
from rayplane.web.units import TIMES, counted, percent


def headline(explanation: Explanation) -> Markup:
    """The first card of the page."""
    plan = explanation.plan
    told = report(plan)
    notes = tag("ul", (tag("li", note) for note in told.notes), class_="notes small") if told.notes else None
    return tag(
        "section",
        tag("h2", "The best layout", class_="small soft"),
        tag("p", str(plan.layout), class_="chosen"),
        tag("p", told.why, class_="why"),
        notes,
        tag("dl", (_tile(*tile) for tile in _tiles(explanation)), class_="tiles"),
        id="answer",
        class_="answer",
        aria_label="The best layout",
    )


def _tiles(explanation: Explanation) -> list[tuple[str, Child, Child]]:
    """(name, value, what to know of it)."""
    plan, estimate = explanation.plan, explanation.plan.estimate
    count, capacity = plan.layout.size, plan.cluster.memory_bytes
    devices = f"{count:,} of {plan.cluster.num_devices:,}" if count != plan.cluster.num_devices else f"{count:,}"
    filled = percent(estimate.memory_bytes / capacity) if capacity else "?"
    return [
        ("Step", seconds(estimate.step_s), f"{counted(plan.num_microbatches, 'microbatch', 'microbatches')} a replica"),
        ("Tokens a second", f"{estimate.tokens_s:,.0f}", f"{estimate.tokens_s / count:,.0f} per device"),
        ("MFU", percent(estimate.mfu), "model FLOPs, of the peak"),
        ("Memory", gigabytes(estimate.memory_bytes), f"{filled} of {gigabytes(capacity)}, fullest device"),
        ("Verdict", chip(estimate.verdict), "against the device's memory"),
        ("Bubble", percent(estimate.bubble), "of the pipe is idle" if plan.layout.pp > 1 else "there is no pipe"),
        ("Devices", devices, _degrees(explanation)),
    ]


def _tile(name: str, value: Child, note: Child) -> Markup:
    return tag("div", tag("dt", name), tag("dd", value, tag("small", note)))


def _degrees(explanation: Explanation) -> str:
    layout = explanation.plan.layout
    return f" {TIMES} ".join(f"{axis} {getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1) or "not cut"
