"""Samples are windows of seq_len + 1 tokens, seq_len apart: every token is a target once, and neighbours share one token.

    tokens    t0 t1 t2 t3 t4 t5 t6 t7 t8 ...          seq_len 3
    window 0  t0 t1 t2 t3                             inputs t0 t1 t2, targets t1 t2 t3
    window 1           t3 t4 t5 t6
    window 2                    t6 t7 t8 ...

Windows of several arrays, and of the parts of an array that are not held out, are numbered through:

    run               0          1             2
    array, offset     a 0        a 1920        b 0
    windows           [0, 40)    [40, 100)     [100, 103)        a window's run is found by bisection
    part              0 ················································ 1 ····        the runs of a source are a part
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rayplane.train.holdout import Holdout
from rayplane.train.stream import Stream

MAX_BLOCK = 64
"""Most windows in a block of a token array that is held out together."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Windows of one array that follow each other: `counts[i]` of them from window `firsts[i]` on."""

    array: Stream
    firsts: Ints
    counts: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """All windows of some runs, by number."""

    seq_len: int
    arrays: tuple[Stream, ...]
    array_of: Ints
    firsts: Ints
    ends: Ints
    parts: tuple[range, ...]
    """The windows of each source."""

    @classmethod
    def of(cls, sources: Sequence[Sequence[Run]], seq_len: int) -> Windows:
        """Numbers the windows of the sources' runs through."""
        runs = [run for source in sources for run in source]
        array_of = [np.full(len(run.firsts), i, dtype=np.int64) for i, run in enumerate(runs)]
        borders = np.cumsum([0, *(sum(int(run.counts.sum()) for run in source) for source in sources)])
        return cls(
            seq_len,
            tuple(run.array for run in runs),
            _joined(array_of),
            _joined(run.firsts for run in runs),
            np.cumsum(_joined(run.counts for run in runs)),
            tuple(range(int(a), int(b)) for a, b in pairwise(borders)),
        )

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, number: int) -> Ints:
        """The seq_len + 1 tokens of a window."""
        array, start = self._find(number)
        return array.read(start, start + self.seq_len + 1)

    def starts(self, number: int) -> Ints:
        """Where in a window documents start, ascending: a number below seq_len + 1 each."""
        array, start = self._find(number)
        return array.starts(start, start + self.seq_len + 1)

    def _find(self, number: int) -> tuple[Stream, int]:
        """(array, place of the first token) of a window."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        run = int(np.searchsorted(self.ends, number, side="right"))
        before = int(self.ends[run - 1]) if run else 0
        return self.arrays[int(self.array_of[run])], (int(self.firsts[run]) + number - before) * self.seq_len


def num_windows(num_tokens: int, seq_len: int) -> int:
    """Windows in so many tokens."""
    return max(num_tokens - 1, 0) // seq_len


def whole(array: Stream, seq_len: int) -> Run:
    """Every window of an array."""
    return Run(array, np.zeros(1, dtype=np.int64), np.array([num_windows(len(array), seq_len)]))


def divided(array: Stream, seq_len: int, holdout: Holdout) -> tuple[Run, Run]:
    """An array's windows for training, and those held out: blocks of 1/256 of the array, at most MAX_BLOCK windows each."""
    total = num_windows(len(array), seq_len)
    block = min(max(total // 256, 1), MAX_BLOCK)
    firsts = holdout.units(-(-total // block)) * block
    ends = np.minimum(firsts + block, total)
    gap_firsts, gap_ends = np.concatenate(([0], ends)), np.concatenate((firsts, [total]))
    return Run(array, gap_firsts, gap_ends - gap_firsts), Run(array, firsts, ends - firsts)


def _joined(parts: Iterable[Ints]) -> Ints:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])
