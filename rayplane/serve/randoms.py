"""A uniform number for a place in a text: a function of the request's seed and the token's position, and of nothing else.

    u(seed, position) = mix(mix(seed) + (position + 1) * G) >> 11, times 2^-53        in [0, 1)

So a text does not depend on what else is in the batch, on how it is cut over ranks, or on which replica goes on with it.
`mix` is the finaliser of SplitMix64 (Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014, figure 14).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

G = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio's odd part, SplitMix64's increment."""


def uniforms(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number for each (seed, position); seeds of any size and sign, of which the lowest 64 bits count."""
    seed = np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], np.uint64)
    position = np.asarray(positions, np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(seed) + (position + np.uint64(1)) * G)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
