"""Tables: numbers to the right; wide ones scroll in themselves rather than the page; on a narrow page each cell names its column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rayplane.web.markup import Child, Markup, tag


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[Child]], words: Collection[int] = (0,)) -> Markup:
    """`words` are the columns that hold words; the others hold numbers. The first column names its row."""
    styles = ["words" if i in words else "number" for i in range(len(headers))]
    head = tag("tr", (tag("th", h, scope="col", class_=s) for h, s in zip(headers, styles, strict=True)))
    body = (
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=styles[0]),
            (tag("td", cell, class_=style, data_of=of) for cell, style, of in zip(row[1:], styles[1:], headers[1:], strict=True)),
        )
        for row in rows
    )
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def numbers(caption: str, headers: Sequence[str], rows: Iterable[Sequence[Child]], words: Collection[int] = (0,)) -> Markup:
    """A picture's table, folded away."""
    return tag("details", tag("summary", "Numbers"), table(caption, headers, rows, words))
