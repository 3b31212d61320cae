"""What the sections share: a block with its heading, and a verdict as a chip that colour alone does not carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rayplane.web.markup import Child, Markup, tag

_MARKS = {"fits": ("good", "✓"), "tight": ("warn", "!"), "compute": ("good", "✓"), "communication": ("warn", "!")}


def block(key: str, heading: str, lead: str, *children: Child | Iterable[Child]) -> Markup:
    """A section that the navigation can name by `key`."""
    head = tag("h2", heading, id=f"{key}-heading")
    return tag("section", head, tag("p", lead, class_="lead"), *children, id=key, class_="block", aria_labelledby=f"{key}-heading")


def visible(terms: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """Those that are more than a rounding error of their sum."""
    least = 1e-6 * sum(value for _, value in terms)
    return tuple((name, value) for name, value in terms if value > least)


def chip(verdict: str, text: str = "") -> Markup:
    """`fits`, `tight`, `does not fit`; or which of compute and communication binds."""
    style, mark = _MARKS.get(verdict, ("bad", "✕"))
    return tag("span", f"{mark} {text or verdict}", class_=f"chip {style}")
