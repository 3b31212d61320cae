"""The frame of a page: its head with the one style sheet, its body, its one script; nothing is asked of anywhere else.

A content security policy says so to the browser: no request leaves the page.
"""

from __future__ import annotations

from importlib.resources import files

from rayplane.web.markup import Child, Markup, tag

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(title: str, *body: Child) -> str:
    """A whole document in one text."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", _file("page.css")),
    )
    content = tag("body", tag("a", "To the content", href="#content", class_="skip"), *body, tag("script", _file("gantt.js")))
    return "<!doctype html>\n" + tag("html", head, content, lang="en") + "\n"


def _file(name: str) -> Markup:
    """A text that lies beside this module."""
    return Markup(files("rayplane.web").joinpath(name).read_text("utf-8"))
