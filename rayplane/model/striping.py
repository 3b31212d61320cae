"""Which cp rank keeps which tokens of a sequence, and a step as one of these ranks sees it.

A block of the scheduler is `block` tokens on each rank, under the same number on all: no rank needs a table of its own, a prefix
found in the cache is found on all ranks, and a block is copied on each by itself. Stripes make causal work even, whatever part of a
prompt a step holds (striped attention, Brandon et al., 2023).

    block 2, cp 2      block 0 of the scheduler      block 1
    position           0 1 2 3                       4 5 6 7
    rank               0 0 1 1                       0 0 1 1
    place on the rank  0 1 0 1                       2 3 2 3

A step's tokens go through norms and products on their own rank alone. Their queries meet the keys of all ranks: they stand in the order
of ranks, those of a rank in the order of the step, and of each is known how many of this rank's keys come before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rayplane.model.paged import PagedStep, Stripes

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Striping:
    """How one of `cp` ranks keeps its part of all sequences, in blocks of `block` tokens."""

    block: int
    cp: int
    rank: int

    @property
    def whole(self) -> int:
        """Tokens of a block of the scheduler."""
        return self.block * self.cp

    def owners(self, positions: Ints) -> Ints:
        """The rank of each position."""
        return positions % self.whole // self.block

    def num_kept(self, lengths: Ints) -> Ints:
        """How many of the first tokens of a sequence this rank keeps."""
        return lengths // self.whole * self.block + np.clip(lengths % self.whole - self.rank * self.block, 0, self.block)

    def slots(self, slots: Ints) -> Ints:
        """Where tokens of this rank lie in its cache, of the scheduler's slots."""
        return slots // self.whole * self.block + slots % self.block

    def part(self, step: PagedStep, window: int) -> PagedStep:
        """This rank's part of a step on the CPU: tokens, slots and rows are its own, sequences are those of all queries."""
        positions, starts = step.positions.numpy(), step.starts.numpy()
        owners = self.owners(positions)
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=self.cp)
        first = int(counts[: self.rank].sum())
        own = order[first : first + counts[self.rank]]
        sequences = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[order]
        pieces = _runs(owners[order], sequences)
        seen = positions[order] + 1
        high = self.num_kept(seen)
        low = self.num_kept(np.maximum(seen - window, 0)) if window else np.zeros_like(high)
        rows = step.rows.numpy()
        return PagedStep(
            tokens=step.tokens[own],
            positions=step.positions[own],
            slots=torch.from_numpy(self.slots(step.slots.numpy()[own])),
            starts=torch.from_numpy(pieces.astype(np.int32)),
            lengths=torch.from_numpy(high[pieces[1:] - 1].astype(np.int32)),
            tables=step.tables[sequences[pieces[:-1]]],
            rows=torch.from_numpy(np.searchsorted(own, rows[owners[rows] == self.rank])),
            stripes=Stripes(
                counts=tuple(counts.tolist()),
                pieces=tuple(np.bincount(owners[order][pieces[:-1]], minlength=self.cp).tolist()),
                keys=torch.from_numpy(np.stack((low, high)).astype(np.int32)),
                first=first,
                row_owners=owners[rows],
            ),
        )


def _runs(owners: Ints, sequences: Ints) -> Ints:
    """Where a new owner or sequence begins, and the end."""
    changes = np.flatnonzero((np.diff(owners) != 0) | (np.diff(sequences) != 0)) + 1
    return np.concatenate(([0], changes, [len(owners)]))
