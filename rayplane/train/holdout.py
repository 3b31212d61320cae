"""Which units of the data (documents, or blocks of a token array) are held out: one of each group of 1 / share neighbours.

    share 0.25       0  1 [2] 3 | 4  5  6 [7]| [8] 9 10 11 | ...        the one is chosen by a hash of (seed, group)

So the share is met exactly, units that are appended leave the choice among the earlier ones as it was, and the held-out units
are spread over the whole data.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rayplane.train.order import stable_hash


@dataclass(frozen=True, slots=True)
class Holdout:
    """The choice for one share and seed. `share` is a fraction of integers: floats would misplace the borders of groups."""

    share: Fraction
    seed: int

    @classmethod
    def of(cls, share: float, seed: int) -> Holdout:
        """The choice for a share in [0, 1)."""
        return cls(Fraction(share).limit_denominator(10**6), seed)

    def holds(self, unit: int) -> bool:
        """Whether unit number `unit` is held out."""
        return bool(self.share) and unit == self._pick(unit * self.share.numerator // self.share.denominator)

    def units(self, count: int) -> list[int]:
        """Every unit below `count` that is held out, in order."""
        groups = -(-count * self.share.numerator // self.share.denominator)
        return [unit for unit in map(self._pick, range(groups)) if unit < count]

    def _pick(self, group: int) -> int:
        first, after = self._start(group), self._start(group + 1)
        return first + stable_hash(self.seed, group) % (after - first)

    def _start(self, group: int) -> int:
        return -(-group * self.share.denominator // self.share.numerator)
