"""Which keys each query sees, as rectangles: those of its own document up to itself and, by spec, at most a window back.

    keys ->
q   x . . . . . . .        documents 0-2 and 3-7, window 3
|   x x . . . . . .
v   x x x . . . . .        tile 1   queries 0-2, keys 0-2: the window does not bite in a document of 3
    . . . x . . . .
    . . . x x . . .        tile 2   queries 3-7, keys 3-7, each query at most 2 keys back
    . . . x x x . .
    . . . . x x x .
    . . . . . x x x

What no tile covers is not computed. Under cp, queries and keys may lie on two ranks, in two spans each. Every query of a tile sees at
least one of the tile's keys, so that no softmax is over nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from rayplane.spec.layout import zigzag

ROWS = 1024
"""Most queries per tile where a window bites."""
Documents = tuple[tuple[int, ...], ...]
"""Of each sample of a batch, where documents start: 0 first, ascending, below its length."""


@dataclass(frozen=True, slots=True)
class Span:
    """Positions [first, end) of a sequence, which lie on a rank from its row `row` on."""

    first: int
    end: int
    row: int

    @property
    def rows(self) -> slice:
        """Where it lies on its rank."""
        return slice(self.row, self.row + self.end - self.first)

    def between(self, first: int, end: int) -> Span:
        """What of it lies in [first, end)."""
        low, high = max(first, self.first), min(end, self.end)
        return Span(low, high, self.row + low - self.first)


@dataclass(frozen=True, slots=True)
class Tile:
    """Some queries of this rank and the keys of one rank that they see, in some samples of the batch.

    Of R queries and K keys, query i sees key j where -left <= j - i - (K - R) <= right; -1 is no limit (FlashAttention's window_size).
    """

    samples: slice
    queries: slice
    keys: slice
    left: int
    right: int
    diagonal: bool
    """Whether each query is among the keys; each row of a rank is in one such tile."""


def spans(seq: int, cp: int, rank: int) -> tuple[Span, ...]:
    """What a cp rank holds of a sequence: two chunks by zigzag, or one span where they meet."""
    (first, size), (second, other) = zigzag(seq, cp, rank)
    if first + size == second:
        return (Span(first, second + other, 0),)
    return Span(first, first + size, 0), Span(second, second + other, size)


def strip(window: int) -> int:
    """Queries per tile where a window bites: a kernel's worth, and not many more keys than each of them sees."""
    return min(ROWS, max(window // 2, 128))


def tiles(queries: Sequence[Span], keys: Sequence[Span], documents: Documents | None, window: int) -> tuple[Tile, ...]:
    """All tiles of one rank's queries with one rank's keys, the diagonal ones first. None is one document a sample, window 0 none."""
    end = max(span.end for span in (*queries, *keys))
    found = [
        tile
        for samples, starts in _alike(documents)
        for first, after in pairwise((*starts, end))
        for q in queries
        for k in keys
        if k.first <= q.first
        for tile in _strips(samples, q.between(first, after), k.between(first, after), window)
    ]
    return tuple(sorted(found, key=lambda tile: not tile.diagonal))


def _alike(documents: Documents | None) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Neighbouring samples with the same documents."""
    if documents is None:
        yield slice(None), (0,)
        return
    for starts, group in groupby(range(len(documents)), key=documents.__getitem__):
        numbers = list(group)
        yield slice(numbers[0], numbers[-1] + 1), starts


def _strips(samples: slice, q: Span, k: Span, window: int) -> Iterator[Tile]:
    """Tiles of two spans of one document; they are the same tokens, or the keys come before the queries."""
    if q.first >= q.end or k.first >= k.end:
        return
    diagonal = q.first == k.first
    if not window or q.end - k.first <= window:
        yield Tile(samples, q.rows, k.rows, -1, 0 if diagonal else -1, diagonal)
        return
    seeing = q.between(q.first, k.end + window - 1)
    size = strip(window)
    for first in range(seeing.first, seeing.end, size):
        rows = seeing.between(first, first + size)
        columns = k.between(first - window + 1, rows.end)
        right = rows.end - columns.end
        whole = rows.end - columns.first <= window and columns.end <= rows.first + 1
        left, right = (-1, -1) if whole else (window - 1 - right, right)
        yield Tile(samples, rows.rows, columns.rows, left, right, diagonal)
