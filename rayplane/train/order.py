"""The order of samples is a function of their index: no list, no state, the same on every rank and under every layout.

    sample k of the run ──divmod by num_windows──▶ (epoch, position) ──permutation keyed by (seed, epoch)──▶ window

The permutation is a Feistel network (Luby and Rackoff, 1988) over the next power of four, walked until it falls inside
[0, num_windows) (cycle walking: Black and Rogaway, 2002). It needs no memory and no look at other samples:

    (left, right) → (right, left xor mix(right, round key))     six times
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WORD = (1 << 64) - 1
ROUNDS = 6
"""Four already pass for a random permutation; two more for the tiny halves of small data sets."""


def mix(value: int) -> int:
    """A 64-bit word, thoroughly stirred: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def stable_hash(*values: int) -> int:
    """A 64-bit hash of some integers that is the same in every process and on every machine."""
    state = 0
    for value in values:
        state = mix(state ^ (value & WORD))
    return state


def stable_hashes(seed: int, values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """stable_hash(seed, value) of many values that are not negative."""
    state = values.astype(np.uint64) ^ np.uint64(mix(seed & WORD))
    state += np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Permutation:
    """A pseudo-random permutation of [0, size)."""

    size: int
    half_bits: int
    keys: tuple[int, ...]

    @classmethod
    def keyed(cls, size: int, *key: int) -> Permutation:
        """The permutation that belongs to `key`."""
        half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        return cls(size, half_bits, tuple(stable_hash(*key, i) for i in range(ROUNDS)))

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.size:
            raise IndexError(position)
        mask, value = (1 << self.half_bits) - 1, position
        while True:
            left, right = value >> self.half_bits, value & mask
            for key in self.keys:
                left, right = right, left ^ (mix(right ^ key) & mask)
            value = left << self.half_bits | right
            if value < self.size:
                return value
