"""What one pass through the model takes: this rank's part of some samples, and which of their targets count.

tokens     a b c | d e | f g h        documents start at 0, 3, 5; seq 7
ids        a b c   d e   f g
targets    b c .   e .   g h          . is IGNORED: the next token begins another document
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rayplane.comm.communicator import Communicator
from rayplane.model.loss import IGNORED
from rayplane.model.tiles import Documents
from rayplane.model.transformer import positions_of

Tensor = torch.Tensor
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Token ids and the tokens that follow them, both [B, S]: this cp rank's part of sequences of `seq` tokens."""

    ids: Tensor
    targets: Tensor
    seq: int
    counted: int
    """How many of the targets count toward the loss."""
    documents: Documents | None
    """Where documents start in each whole sample, where they are kept apart."""

    @classmethod
    def of(cls, rows: Ints, starts: Sequence[Ints] | None, cp: Communicator, device: torch.device) -> Microbatch:
        """Of samples [B, seq + 1]; `starts` are where documents start in each, where they are to be kept apart."""
        seq, targets, documents = rows.shape[1] - 1, rows[:, 1:], None
        if starts is not None:
            targets = targets.copy()
            for row, places in zip(targets, starts, strict=True):
                row[places[places > 0] - 1] = IGNORED
            documents = tuple((0, *places[(places > 0) & (places < seq)].tolist()) for places in starts)
        ids = rows[:, :-1]
        if cp.size > 1:
            mine = positions_of(cp, seq, torch.device("cpu")).numpy()
            ids, targets = ids[:, mine], targets[:, mine]
        ids, targets = np.ascontiguousarray(ids), np.ascontiguousarray(targets)
        counted = int((targets != IGNORED).sum())
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(targets).to(device), seq, counted, documents)
