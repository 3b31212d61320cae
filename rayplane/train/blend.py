"""Which source each sample comes from, when several are blended by weight: a function of the sample's index alone.

    weights 0.5 0.3 0.2        period 10 = the weights in lowest terms, 5 + 3 + 2
    sample    0 1 2 3 4 5 6 7 8 9 | 10 ...
    source    0 1 0 2 0 1 0 2 1 0 | 0 ...
    number    0 0 1 0 2 1 3 1 2 4 | 5 ...      sample k is sample number `number` of its source

In any first k samples each source has its weight times k of them, to within one sample. The order of a period is Tijdeman's (The
chairman assignment problem, 1980): of the sources that have fallen behind, the one that would be too late first. Weights whose
lowest terms add up to more than MAX_PERIOD are rounded to that many parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

MAX_PERIOD = 1 << 16
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """One period: the source of each of its samples, its number there, and how many samples each source has in it."""

    order: Ints
    numbers: Ints
    parts: Ints

    @classmethod
    def of(cls, weights: Sequence[float]) -> Blend:
        """The blend of sources with these weights, all above zero."""
        parts = np.array(in_parts(weights), dtype=np.int64)
        order = _order(parts)
        numbers = np.empty(len(order), dtype=np.int64)
        for source, part in enumerate(parts):
            numbers[order == source] = np.arange(part)
        return cls(order, numbers, parts)

    def __getitem__(self, index: int) -> tuple[int, int]:
        """(source, sample number of that source) of sample `index`."""
        period, place = divmod(index, len(self.order))
        source = int(self.order[place])
        return source, period * int(self.parts[source]) + int(self.numbers[place])

    def counts(self, index: int) -> list[int]:
        """How many of the samples before `index` come from each source."""
        periods, place = divmod(index, len(self.order))
        rest = np.bincount(self.order[:place], minlength=len(self.parts))
        return [periods * int(part) + int(more) for part, more in zip(self.parts, rest, strict=True)]


def in_parts(weights: Sequence[float]) -> list[int]:
    """The weights in lowest terms, as the user wrote them in decimals; rounded where these are very many."""
    shares = [Fraction(repr(weight)) for weight in weights]
    scale = math.lcm(*(share.denominator for share in shares))
    parts = [int(share * scale) for share in shares]
    divisor = math.gcd(*parts)
    if sum(parts) // divisor > MAX_PERIOD:
        return [max(1, round(MAX_PERIOD * share / sum(shares))) for share in shares]
    return [part // divisor for part in parts]


def _order(parts: Ints) -> Ints:
    """The sources of one period: `parts[i]` times source i."""
    period, sources = int(parts.sum()), len(parts)
    if sources == 1:
        return np.zeros(period, dtype=np.int64)
    slack = 2 * sources - 2
    order, given = np.empty(period, dtype=np.int64), np.zeros(sources, dtype=np.int64)
    for place in range(period):
        behind = slack * ((place + 1) * parts - period * given)
        until_late = (period * (slack - 1) - behind) / parts
        order[place] = np.argmin(np.where(behind >= period, until_late, np.inf))
        given[order[place]] += 1
    return order
