"""One array of tokens out of many files, with what is held out left out: nothing is copied, and no token is lost at a border.

    shards       [ 0 1 2 3 4 5 ][ 6 7 8 9 10 11 12 ]         documents start at 0 4 9
    held out             4 5      6 7 8                       here one document, across the border of two shards
    stream       0 1 2 3 | 9 10 11 12                         two segments; documents start at 0 4

Where a segment ends inside a document, the separator stands behind it, and what follows counts as a new document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rayplane.train.arrays import Tokens

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """Tokens of a file, and where documents start in it, sorted."""

    tokens: Tokens
    documents: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Shards read as one array."""

    shards: tuple[Shard, ...]
    ends: Ints

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Shards:
        """The shards, one behind the other."""
        return cls(tuple(shards), np.cumsum([len(s.tokens) for s in shards], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def overlaps(self, first: int, after: int) -> Iterator[tuple[Shard, int, int, int]]:
        """(shard, its first token's place, and which of its tokens) for each shard that has some of [first, after)."""
        number = int(np.searchsorted(self.ends, first, side="right"))
        while first < after:
            shard, end = self.shards[number], int(self.ends[number])
            begin = end - len(shard.tokens)
            yield shard, begin, first - begin, min(after, end) - begin
            first, number = max(first, end), number + 1

    def documents(self, first: int, after: int) -> Iterator[Ints]:
        """Where documents start in [first, after), by pieces."""
        for shard, begin, low, high in self.overlaps(first, after):
            a, b = np.searchsorted(shard.documents, (low, high))
            yield shard.documents[a:b] + begin

    def between(self, places: Ints) -> npt.NDArray[np.bool_]:
        """Whether a document starts at each of some sorted places, or the tokens end there."""
        result = places == len(self)
        for shard, end in zip(self.shards, self.ends, strict=True):
            begin = int(end) - len(shard.tokens)
            a, b = np.searchsorted(places, (begin, int(end)))
            at = np.searchsorted(shard.documents, places[a:b] - begin)
            found = at < len(shard.documents)
            result[a:b][found] |= shard.documents[at[found]] == places[a:b][found] - begin
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Segments of shards read as one array: segment i has the shards' tokens from `firsts[i]` on, and ends at `ends[i]` here."""

    shards: Shards
    firsts: Ints
    ends: Ints
    cut: npt.NDArray[np.bool_]
    """Whether a segment's last token is a separator that is not in the shards."""
    separator: int

    @classmethod
    def whole(cls, shards: Shards) -> Stream:
        """Everything."""
        return cls.of(shards, np.array([[0, len(shards)]], dtype=np.int64), None)

    @classmethod
    def of(cls, shards: Shards, segments: Ints, separator: int | None) -> Stream:
        """Segments [n, 2], each [first, after) of the shards' tokens."""
        segments = segments[segments[:, 1] > segments[:, 0]]
        cut = ~shards.between(segments[:, 1]) & (separator is not None)
        return cls(shards, segments[:, 0], np.cumsum(segments[:, 1] - segments[:, 0] + cut), cut, separator or 0)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, first: int, after: int) -> Ints:
        """The tokens [first, after)."""
        out = np.full(after - first, self.separator, dtype=np.int64)
        for place, low, high in self._segments(first, after):
            for shard, begin, a, b in self.shards.overlaps(low, high):
                at = place + begin + a - low - first
                out[at : at + b - a] = shard.tokens[a:b]
        return out

    def starts(self, first: int, after: int) -> Ints:
        """Where documents start in [first, after), counted from `first`."""
        found = [np.empty(0, dtype=np.int64)]
        for place, low, high in self._segments(first, after):
            if place > first or self._is_begin(place):
                found.append(np.array([place - first], dtype=np.int64))
            found += [starts - low + place - first for starts in self.shards.documents(low, high)]
        return np.unique(np.concatenate(found))

    def _is_begin(self, place: int) -> bool:
        """Whether a segment begins at a place."""
        before = int(np.searchsorted(self.ends, place))
        return place == 0 or (before < len(self.ends) and int(self.ends[before]) == place)

    def _segments(self, first: int, after: int) -> Iterator[tuple[int, int, int]]:
        """(place in the stream, and which of the shards' tokens) for each segment that has some of [first, after)."""
        number = int(np.searchsorted(self.ends, first, side="right"))
        while first < after:
            end, begin = int(self.ends[number]), int(self.ends[number - 1]) if number else 0
            offset, real_end = int(self.firsts[number]) - begin, end - int(self.cut[number])
            if first < real_end:
                yield first, first + offset, min(after, real_end) + offset
            first, number = end, number + 1
