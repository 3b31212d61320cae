"""The questions that a parallel runtime is asked, answered for this model on this cluster; and what the figures rest on."""

from __future__ import annotations

from rayplane.plan.why.explanation import Answer, Explanation
from rayplane.web.markup import Markup, tag
from rayplane.web.sections.parts import block


def answers(explanation: Explanation) -> Markup | None:
    """All questions, by number."""
    if not explanation.answers:
        return None
    lead = "The questions of docs/parallelism.md, answered with this plan's own numbers."
    listed = tag("ol", map(_answer, sorted(explanation.answers, key=lambda a: a.number)), class_="answers")
    return block("answers", f"{len(explanation.answers)} questions", lead, listed)


def figures(explanation: Explanation) -> Markup:
    """Which of the planner's figures were measured here, come from a table, or are assumed."""
    lead = "Figures measured on this hardware come before those of the table, and those before assumed ones."
    return block("figures", "What the figures rest on", lead, tag("p", explanation.figures))


def _answer(answer: Answer) -> Markup:
    return tag("li", tag("span", str(answer.number), class_="which"), tag("div", tag("h3", answer.question), tag("p", answer.text)))
