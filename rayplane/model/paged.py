"""One step of serving as the model sees it: tokens of several sequences in a row, and where their keys and values are kept.

blocks of 4 tokens     sequence 0, 5 tokens known, 1 of them new      tables [[7, 2]]   slots [2 * 4 + 0]   lengths [5]
                       sequence 1, 3 tokens known, all new            tables [[5]]      slots [20, 21, 22]  lengths [3]
tokens [a, x, y, z]    starts [0, 1, 4]    positions [4, 0, 1, 2]     rows [0, 3]: logits of the last token of each
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Stripes:
    """Over cp, where each rank keeps a part of each sequence (striping.py): the Q queries of all ranks, in the order of ranks.

    A step with them has the tokens, positions, slots and rows of one rank, and starts, lengths and tables of all queries: as many
    sequences as there are pairs of a rank and a sequence with tokens, and of each the keys that are kept here.
    """

    counts: tuple[int, ...]
    """Queries of each rank."""
    pieces: tuple[int, ...]
    """Sequences of each rank."""
    keys: Tensor
    """int32 [2, Q]: of the keys kept here a query meets those from the one number up to before the other."""
    first: int
    """Of this rank's queries."""
    row_owners: npt.NDArray[np.int64]
    """[R]: the rank of each row of logits, in the order of the whole step."""

    @property
    def row_counts(self) -> list[int]:
        """Rows of logits of each rank."""
        return np.bincount(self.row_owners, minlength=len(self.counts)).tolist()

    def row_places(self, apart: int = 0) -> Tensor:
        """int64 [R]: where each row lies when the ranks' rows follow one another, or begin `apart` rows from each other."""
        counts = self.row_counts
        firsts = np.arange(len(counts)) * apart if apart else np.array([0, *accumulate(counts)][:-1])
        order = np.argsort(self.row_owners, kind="stable")
        out = np.empty_like(order)
        out[order] = np.concatenate([first + np.arange(count) for first, count in zip(firsts, counts, strict=True)])
        return torch.from_numpy(out)


@dataclass(frozen=True, slots=True)
class PagedStep:
    """T tokens of N sequences; W blocks at most in a table; R rows of logits."""

    tokens: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T]: of each token in its sequence."""
    slots: Tensor
    """int64 [T]: block * block size + offset, where a token's key and value go."""
    starts: Tensor
    """int32 [N + 1]: the first token of each sequence, and T."""
    lengths: Tensor
    """int32 [N]: tokens of each sequence, those of this step included; the new ones are its last."""
    tables: Tensor
    """int32 [N, W]: the blocks of each sequence in order; what is beyond its length is not read."""
    rows: Tensor
    """int64 [R]: tokens whose logits are wanted."""
    stripes: Stripes | None = None
    """Over cp only."""

    def to(self, device: torch.device) -> PagedStep:
        """The step on a device."""
        tensors = {f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self) if f.name != "stripes"}
        stripes = self.stripes and replace(self.stripes, keys=self.stripes.keys.to(device, non_blocking=True))
        return PagedStep(**tensors, stripes=stripes)

    def of_rank(self, rank: int) -> PagedStep:
        """The same with the queries of one cp rank only."""
        assert self.stripes is not None
        first = sum(self.stripes.pieces[:rank])
        end = first + self.stripes.pieces[rank]
        return replace(self, starts=self.starts[first : end + 1], lengths=self.lengths[first:end], tables=self.tables[first:end])
