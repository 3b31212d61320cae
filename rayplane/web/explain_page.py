"""The page of `rayplane explain --html`: one file that holds all it shows.

answer     the layout, step, tokens a second, MFU, verdict, and why, before anything else
choice     the winner's waterfall beside its runners-up   traffic   what each axis sends, and what binds it
sweeps     one number changed at a time                   memory    bytes by stage under the device's
timeline   the simulated step, zoomable                   what-ifs  another cluster
answers    the questions of docs/parallelism.md           figures   what was measured, and what was not
"""

from __future__ import annotations

from rayplane.plan.why.explanation import Explanation
from rayplane.web.markup import Markup, tag
from rayplane.web.page import page
from rayplane.web.sections.answers import answers, figures
from rayplane.web.sections.choice import choice
from rayplane.web.sections.headline import headline
from rayplane.web.sections.stages import memory, timeline
from rayplane.web.sections.sweeps import sweeps
from rayplane.web.sections.traffic import traffic
from rayplane.web.sections.what_ifs import what_ifs

_SECTIONS = (
    ("choice", "Why this layout", choice),
    ("traffic", "Traffic", traffic),
    ("sweeps", "Cut otherwise", sweeps),
    ("memory", "Memory", memory),
    ("timeline", "Timeline", timeline),
    ("what-ifs", "What if", what_ifs),
    ("answers", "Questions", answers),
    ("figures", "Figures", figures),
)


def render(explanation: Explanation) -> str:
    """A whole HTML document that asks for nothing outside itself; all that a user wrote is escaped."""
    drawn = [(key, name, made) for key, name, draw in _SECTIONS if (made := draw(explanation)) is not None]
    links = (tag("li", tag("a", name, href=f"#{key}")) for key, name, _ in drawn)
    return page(
        f"{explanation.name}: {explanation.plan.layout}",
        _top(explanation),
        tag("nav", tag("ul", links), aria_label="Sections"),
        tag("main", headline(explanation), (made for _, _, made in drawn), id="content"),
        tag("footer", "Made by rayplane explain. Times are predictions; rayplane run measures them."),
    )


def _top(explanation: Explanation) -> Markup:
    return tag(
        "header",
        tag("p", "rayplane explain", class_="kind"),
        tag("h1", explanation.name),
        tag("p", explanation.model, class_="facts"),
        tag("p", explanation.cluster, class_="facts"),
        class_="top",
    )
