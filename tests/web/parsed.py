"""Reads a page as a browser would: what is open and never closed, what is visible, what it would ask of others."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "link", "br", "hr", "rect", "line", "circle", "path"}


class Parsed(HTMLParser):
    """The text a reader sees, every element's attributes, and the ids; fails on elements that do not nest."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> does not close what is open"

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """What is written on the page, spaces made one."""
        return " ".join(" ".join(self.texts).split())

    @property
    def ids(self) -> list[str]:
        """Of all elements that have one."""
        return [attributes["id"] for _, attributes in self.elements if attributes.get("id")]


def pictures(page: str) -> list[ElementTree.Element]:
    """Every picture of a page as XML; ParseError when one is not well formed."""
    found, at = [], 0
    while (at := page.find('<svg class="plot', at)) >= 0:
        depth, end = 0, at
        for match in re.finditer(r"<svg\b|</svg>", page[at:]):
            depth += 1 if match[0] == "<svg" else -1
            if depth == 0:
                end = at + match.end()
                break
        found.append(ElementTree.fromstring(page[at:end]))
        at = end
    return found


def shapes(picture: ElementTree.Element, name: str, style: str = "") -> list[dict[str, str]]:
    """Attributes of a picture's rects, lines or circles of a class."""
    return [e.attrib for e in picture.iter(name) if not style or style in e.attrib.get("class", "").split()]


def share(text: str) -> float:
    """`12.5%` as 0.125."""
    assert text.endswith("%")
    return float(text[:-1]) / 100
