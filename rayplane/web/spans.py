"""A timeline as whole numbers: packed for the page's script, and in parts for a picture that cannot show each span.

packed   per rank, kinds [[op, chunk, gap, length], …] and bars [kind, …]; a gap is from the end of the span before. Microbatches of
         an op and chunk count up from 0; where one does not, -1 - microbatch stands before its kind
parts    per row and op, the share of each part of the time it took: 0.4 of a part drawn as 40% of the row's height

Times are in ticks, of which the timeline has TICKS. Spans of no length (transfers that nothing waits for) are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.step.timeline import Timeline
from rayplane.spec.schedule import Op, Span
from rayplane.web.palette import colour_of_op

TICKS = 1_000_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A span in ticks."""

    op: Op
    chunk: int
    microbatch: int
    start: int
    end: int


def drawn(timeline: Timeline) -> tuple[tuple[Drawn, ...], ...]:
    """Spans that have a length, by rank."""
    end_s = end_of(timeline) or 1.0
    return tuple(tuple(d for d in (_in_ticks(span, end_s) for span in spans) if d.end > d.start) for spans in timeline.ranks)


def end_of(timeline: Timeline) -> float:
    """When the last span ends; 0 for a timeline without any."""
    return max((spans[-1].end_s for spans in timeline.ranks if spans), default=0.0)


def _in_ticks(span: Span, end_s: float) -> Drawn:
    action = span.action
    return Drawn(action.op, action.chunk, action.microbatch, round(span.start_s / end_s * TICKS), round(span.end_s / end_s * TICKS))


def packed(ranks: Sequence[Sequence[Drawn]], end_s: float) -> str:
    """JSON for the page's script: some 4 bytes a span where lengths repeat, some 20 where none does."""
    ops = sorted({span.op for spans in ranks for span in spans})
    colours = {op.value: colour_of_op(op) for op in ops}
    value = {"end_s": end_s, "ticks": TICKS, "colours": colours, "ranks": [_rank(spans) for spans in ranks]}
    return json.dumps(value, separators=(",", ":"))


def _rank(spans: Sequence[Drawn]) -> dict[str, list[object]]:
    kinds: dict[tuple[str, int, int, int], int] = {}
    due: dict[tuple[Op, int], int] = defaultdict(int)
    bars: list[object] = []
    now = 0
    for span in spans:
        if span.microbatch != due[span.op, span.chunk]:
            bars.append(-1 - span.microbatch)
        due[span.op, span.chunk] = span.microbatch + 1
        bars.append(kinds.setdefault((span.op.value, span.chunk, span.start - now, span.end - span.start), len(kinds)))
        now = span.end
    return {"kinds": list(kinds), "bars": bars}


def parts(ranks: Sequence[Sequence[Drawn]], count: int) -> dict[str, list[float]]:
    """The share of each of `count` equal parts of the time that every colour takes, in the mean of some ranks."""
    length = TICKS / count
    whole = length * len(ranks)
    out: dict[str, list[float]] = defaultdict(lambda: [0.0] * count)
    for span in (span for spans in ranks for span in spans):
        shares = out[colour_of_op(span.op)]
        first, last = int(span.start / length), min(int(span.end / length), count - 1)
        for i in range(first, last + 1):
            shares[i] += max(0.0, min(span.end, (i + 1) * length) - max(span.start, i * length)) / whole
    return dict(out)
