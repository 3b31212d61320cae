"""What calibration adds to a device kind: ratios where one figure of the catalog stands for several, and curves of collectives.

seconds of a collective

    │          ╱   beyond the largest: as steep as between the last two
    │   ●────●     between two sizes: straight
    ●─●            below the smallest: what the smallest takes
    └──────────▶   bytes
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

Points = tuple[tuple[float, float], ...]
"""(bytes, seconds), in order; more bytes take no less time."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Measured over computed seconds."""

    products: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Of a weight's product, and of those that give the gradients of its input and of itself."""
    attention_backward: float = 1.0
    head: float = 1.0
    optimizer: float = 1.0
    cp_jitter: float = 0.0
    """Not over computed seconds, but what the catalog's jitter is over tp."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Measured seconds by bytes: of collectives by (operation, ranks, ranks in an island), of messages by whether they stay in one."""

    collectives: Mapping[tuple[str, int, int], Points] = field(default_factory=dict)
    messages: Mapping[bool, Points] = field(default_factory=dict)


AS_COMPUTED, NOT_MEASURED = Ratios(), Curves()


def points(measured: Iterable[tuple[float, float]]) -> Points:
    """Sorted, and made to rise where noise has them fall."""
    ordered = sorted(measured)
    return tuple(zip((b for b, _ in ordered), accumulate((s for _, s in ordered), max), strict=True))


def seconds_at(curve: Points, num_bytes: float) -> float:
    """As drawn above."""
    sizes = [b for b, _ in curve]
    after = bisect_right(sizes, num_bytes)
    if after == 0 or len(curve) == 1:
        return curve[0][1]
    (low, at_low), (high, at_high) = curve[after - 1 : after + 1] if after < len(curve) else curve[-2:]
    return at_high + (at_high - at_low) / (high - low) * (num_bytes - high)
