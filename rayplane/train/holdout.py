"""Which units of the data (documents, or blocks of a token array) are held out: one of each group of 1 / share neighbours.

    share 0.25       0  1 [2] 3 | 4  5  6 [7]| [8] 9 10 11 | ...        the one is chosen by a hash of (seed, group)

So the share is met exactly, units that are appended leave the choice among the earlier ones as it was, and the held-out units
are spread over the whole data.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from rayplane.train.order import stable_hashes

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Holdout:
    """The choice for one share and seed. `share` is a fraction of integers: floats would misplace the borders of groups."""

    share: Fraction
    seed: int

    @classmethod
    def of(cls, share: float, seed: int) -> Holdout:
        """The choice for a share in [0, 1)."""
        return cls(Fraction(share).limit_denominator(10**6), seed)

    def units(self, count: int) -> Ints:
        """Every unit below `count` that is held out, in order."""
        num_groups = -(-count * self.share.numerator // self.share.denominator)
        groups = np.arange(num_groups + 1, dtype=np.int64)
        starts = -(-groups * self.share.denominator // max(self.share.numerator, 1))
        widths = np.diff(starts).astype(np.uint64)
        units: Ints = starts[:-1] + (stable_hashes(self.seed, groups[:-1]) % widths).astype(np.int64)
        return units[units < count]
