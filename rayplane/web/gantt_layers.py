"""What lies on one another in a timeline's picture: the rows' grounds and names, the bars, microbatch numbers, the seconds below.

Bars stand in ticks in a view of their own, which zooming stretches; all the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rayplane.plan.choice.report import seconds
from rayplane.spec.schedule import Op
from rayplane.web.markup import Markup, tag
from rayplane.web.palette import colour_of_op
from rayplane.web.spans import TICKS, Drawn, parts
from rayplane.web.svg import across, every, ticks
from rayplane.web.units import percent, round_seconds

WORDS = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.INPUT_GRAD: "gradient of the input",
    Op.WEIGHT_GRAD: "gradients of the weights",
    Op.SEND_F: "send of the activation",
    Op.RECV_F: "receive of the activation",
    Op.SEND_B: "send of its gradient",
    Op.RECV_B: "receive of its gradient",
    Op.REDUCE: "reduction of the gradients",
    Op.STEP: "optimizer step",
}
OF_ALL = frozenset({Op.REDUCE, Op.STEP})
"""What concerns no single microbatch."""
Ranks = Sequence[Sequence[Drawn]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows are, in pixels: one for each rank, or for each `group` neighbours."""

    name: str
    """Of a rank: stage."""
    num_ranks: int
    group: int = 1

    @property
    def count(self) -> int:
        """Rows."""
        return -(-self.num_ranks // self.group)

    @property
    def pitch(self) -> int:
        """From a row to the next."""
        return 26 if self.count <= 16 else 14 if self.count <= 64 else 8

    @property
    def bar(self) -> int:
        """A row without the space to the next."""
        return self.pitch - (4 if self.pitch == 26 else 2 if self.pitch == 14 else 1)

    @property
    def height(self) -> int:
        """Of all rows."""
        return self.count * self.pitch

    def title(self, row: int) -> str:
        """`stage 3`, or `stages 8 to 15`."""
        first, last = row * self.group, min((row + 1) * self.group, self.num_ranks) - 1
        return f"{self.name} {first}" if first == last else f"{self.name}s {first} to {last}"


def bars(ranks: Ranks, rows: Rows, end_s: float) -> list[Markup]:
    """Every span as a bar that tells what it is; a row for each rank."""
    return [tag("g", (_bar(i, span, rows, end_s / TICKS) for span in spans)) for i, spans in enumerate(ranks)]


def _bar(row: int, span: Drawn, rows: Rows, tick_s: float) -> Markup:
    of = "" if span.op in OF_ALL else f", microbatch {span.microbatch}"
    when = f"{seconds((span.end - span.start) * tick_s)} from {seconds(span.start * tick_s)}"
    title = tag("title", f"{rows.title(row)}: {WORDS[span.op]}, chunk {span.chunk}{of}: {when}")
    shape = tag("rect", x=span.start, y=row * rows.pitch, width=span.end - span.start, height=rows.bar, class_=colour_of_op(span.op))
    return tag("g", title, shape)


def shares(ranks: Ranks, rows: Rows, num_parts: int) -> list[Markup]:
    """Each op's share of every part of the time, stacked in the row's height; one path per row and colour."""
    size = rows.group
    return [_share(i, ranks[i * size : (i + 1) * size], rows, num_parts) for i in range(rows.count)]


def _share(row: int, ranks: Ranks, rows: Rows, num_parts: int) -> Markup:
    base, paths = [float(row * rows.pitch + rows.bar)] * num_parts, []
    for colour, taken in parts(ranks, num_parts).items():
        heights = [round(4 * share * rows.bar) / 4 for share in taken]
        paths.append(tag("path", d=_boxes(base, heights), class_=colour))
        base = [b - h for b, h in zip(base, heights, strict=True)]
    busy = sum(s.end - s.start for spans in ranks for s in spans) / TICKS / len(ranks)
    title = f"{rows.title(row)}: busy {percent(busy)} of the step, {sum(map(len, ranks)):,} bars"
    return tag("g", tag("title", title), paths)


def _boxes(base: Sequence[float], heights: Sequence[float]) -> str:
    """A path with a box for every run of parts that are alike."""
    out, first, width = [], 0, TICKS / len(base)
    for (bottom, height), run in groupby(zip(base, heights, strict=True)):
        last = first + len(list(run))
        if height:
            left = round(first * width)
            out.append(f"M{left} {bottom:g}v{-height:g}h{round(last * width) - left}v{height:g}z")
        first = last
    return "".join(out)


def marks(ranks: Ranks, rows: Rows) -> list[Markup]:
    """Microbatch numbers, where a bar has room for them on a page of usual width; the script writes them anew for the real one."""
    wide = ((i, s) for i, spans in enumerate(ranks) for s in spans if s.end - s.start > TICKS / 50 and s.op not in OF_ALL)
    if rows.pitch < 14:
        return []
    return [
        tag(
            "text",
            s.microbatch,
            x=across((s.start + s.end) / 2 / TICKS),
            y=i * rows.pitch + rows.bar / 2,
            dy="0.35em",
            text_anchor="middle",
            class_=f"on-{colour_of_op(s.op)}",
        )
        for i, s in wide
    ]


def names(rows: Rows) -> list[Markup]:
    """The ranks' names in the margin, and each row's ground."""
    step = every(rows.count, max(1, rows.height // 14))
    prefix = f"{rows.name} " if rows.count <= 16 else ""
    out = []
    for i in range(rows.count):
        middle = i * rows.pitch + rows.bar / 2
        out.append(tag("rect", x=0, y=i * rows.pitch, width="100%", height=rows.bar, class_="ground"))
        if i % step == 0:
            out.append(tag("text", f"{prefix}{i * rows.group}", x=-8, y=middle, dy="0.35em", text_anchor="end", class_="tick"))
    return out


def times(end_s: float, rows: Rows) -> list[Markup]:
    """Seconds under the rows."""
    out = []
    for value in ticks(end_s, 5):
        x = across(value / end_s) if end_s else "0"
        out.append(tag("line", x1=x, x2=x, y1=0, y2=rows.height + 4, class_="grid"))
        out.append(tag("text", round_seconds(value), x=x, y=rows.height + 18, class_="tick"))
    return out
