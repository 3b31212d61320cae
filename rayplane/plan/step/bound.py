"""A lower bound of a step before its stages are drafted: what chunks compute and wait for over tp and cp, sent through the pipe.

reductions, transfers, weights gathered under zero and the optimizer are left out, which only makes it lower
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from rayplane.plan.step.draft import SPLIT
from rayplane.plan.step.pieces import Piece, Pieces
from rayplane.plan.step.pipe import Pipe, lower_bound_s, recomputed, stages_of
from rayplane.spec.layout import Layout


def at_least_s(layout: Layout, of: Pieces, part: Sequence[float]) -> float:
    """Seconds, for stages on one kind of device; `part` as in `lower_bound_s`."""
    last, known = layout.num_chunks - 1, dict[tuple[int, bool, bool], tuple[float, ...]]()
    parts = [_seconds(piece) for piece in (of.layer, of.again, of.embed, of.head)]
    seconds = []
    for chunk, layers in enumerate(layout.boundaries):
        alike = (layers, chunk == 0, chunk == last)
        if alike not in known:
            again = recomputed(layout, layers)
            counts = (layers - again, again, *alike[1:])
            known[alike] = tuple(sum(map(mul, counts, each)) for each in zip(*parts, strict=True))
        seconds.append(known[alike])
    forward_s, input_s, weight_s = zip(*seconds, strict=True)
    pipe = Pipe(stages_of(layout), forward_s, input_s, weight_s, (0.0,) * last, ())
    return lower_bound_s(pipe, part, layout.schedule in SPLIT)


def _seconds(piece: Piece) -> tuple[float, float, float]:
    """Forward and the two halves of backward, with what is waited for."""
    of = (piece.compute, piece.tp, piece.cp)
    return sum(s.forward for s in of), sum(s.input_grad for s in of), sum(s.weight_grad for s in of)
