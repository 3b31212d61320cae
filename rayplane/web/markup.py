"""HTML and SVG as text that is escaped unless it was made here.

tag("p", "1 < 2", class_="note")     <p class="note">1 &lt; 2</p>
tag("p", tag("b", "x"), " & y")      <p><b>x</b> &amp; y</p>
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = frozenset({"meta", "link", "br", "hr", "rect", "line", "circle", "path"})
"""Elements that are written without an end; of the others HTML wants one even when they are empty."""


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


Child = str | int | None
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child | Iterable[Child], **attributes: Attribute) -> Markup:
    """An element. `class_` is written class, `aria_label` aria-label; True stands for a bare attribute, None and False for none."""
    written = "".join(
        f' {_name(key)}="{escape(_name(key) if value is True else str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child | Iterable[Child]) -> Markup:
    """Children one after another; what is not markup is escaped, None is nothing."""
    return Markup("".join(_text(child) for child in children))


def _text(child: Child | Iterable[Child]) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return escape(str(child), quote=False)
    return "".join(_text(c) for c in child)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
