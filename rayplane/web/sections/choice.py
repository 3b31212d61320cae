"""Where the step's time goes, of the winner and of those it beat; why each lost; and what was refused."""

from __future__ import annotations

from collections.abc import Sequence

from rayplane.plan.choice.report import seconds
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.why.explanation import Explanation, Waterfall
from rayplane.spec.plan import Rejected
from rayplane.web.bars import Part, strip
from rayplane.web.markup import Markup, join, tag
from rayplane.web.palette import colours
from rayplane.web.sections.parts import block, chip, visible
from rayplane.web.svg import legend
from rayplane.web.table import numbers, table
from rayplane.web.units import NOTHING, against, counted
from rayplane.web.waterfall import waterfall

SHOWN_RUNNERS_UP, SHOWN_REFUSALS = 4, 60


def choice(explanation: Explanation) -> Markup:
    """The winner's waterfall beside the runners-up on one scale."""
    falls = explanation.waterfalls
    lead = "A step's seconds, term by term. The bars of a list have one scale, so a longer bar is a slower layout."
    if not falls:
        return block("choice", "Why this layout", lead, _refused(explanation.plan.rejected))
    names = list(dict.fromkeys(name for fall in falls for name, _ in visible(fall.terms)))
    colour = colours(names)
    cut = 1 + SHOWN_RUNNERS_UP
    first, rest = (_list(fs, falls[0], colour) for fs in (falls[:cut], falls[cut:]))
    more = tag("details", tag("summary", counted(len(falls) - cut, "more runner-up", "more runners-up")), rest)
    best = waterfall(f"The step of {falls[0].layout}", visible(falls[0].terms), falls[0].step_s)
    pair = tag(
        "div",
        tag("div", tag("h3", "The winner's step"), tag("figure", best), class_="winner"),
        tag(
            "div",
            tag("h3", "Beside its runners-up"),
            legend((n, colour[n]) for n in names),
            first,
            more if len(falls) > cut else None,
        ),
        class_="pair",
    )
    return block("choice", "Why this layout", lead, pair, _numbers(falls, names), _refused(explanation.plan.rejected))


def _list(falls: Sequence[Waterfall], winner: Waterfall, colour: dict[str, str]) -> Markup:
    """Layouts on the scale of the slowest of them."""
    full = max((max(fall.step_s, sum(v for _, v in fall.terms)) for fall in falls), default=1.0)
    return tag("ol", (_ranked(fall, winner, full, colour) for fall in falls), class_="ranked")


def _ranked(fall: Waterfall, winner: Waterfall, full: float, colour: dict[str, str]) -> Markup:
    parts = [Part(name, value, seconds(value)) for name, value in visible(fall.terms)]
    more = None if fall is winner else tag("span", against(fall.step_s, winner.step_s), class_="soft")
    line = tag(
        "div",
        tag("span", str(fall.layout), class_="layout"),
        tag("b", seconds(fall.step_s)),
        more,
        chip(fall.verdict, f"{fall.verdict} {gigabytes(fall.memory_bytes)}"),
        class_="line",
    )
    because = tag("p", tag("b", "Lost because "), fall.lost_because, class_="because") if fall.lost_because else None
    said = ", ".join(f"{part.name} {part.text}" for part in parts)
    return tag("li", line, strip(f"{fall.layout}: {said}", parts, full, colour), because)


def _numbers(falls: tuple[Waterfall, ...], names: list[str]) -> Markup:
    rows = []
    for fall in falls:
        terms = dict(visible(fall.terms))
        cells = (seconds(terms[n]) if n in terms else NOTHING for n in names)
        rows.append((str(fall.layout), seconds(fall.step_s), *cells, gigabytes(fall.memory_bytes), fall.verdict))
    return numbers("Seconds a step by term", ("layout", "step", *names, "memory", "verdict"), rows)


def _refused(rejected: Sequence[Rejected]) -> Markup | None:
    """One refusal of each reason first, for a reader wants kinds of reasons, not rows."""
    if not rejected:
        return None
    firsts: dict[str, Rejected] = {}
    for r in rejected:
        firsts.setdefault(r.reason, r)
    shown = list(firsts.values())[:SHOWN_REFUSALS]
    rows = ((str(r.layout), r.reason) for r in shown)
    left = len(rejected) - len(shown)
    rest = tag("p", f"{left:,} more were refused or lost for reasons alike; rayplane plan --all lists them.", class_="small soft")
    summary = tag("summary", f"{len(rejected):,} more layouts were refused, or lost")
    listed = table("Refused and lost layouts", ("layout", "reason"), rows, words=(0, 1))
    return tag("details", summary, join(listed, rest if left else None))
