"""An op of a serving program: it reads and writes fixed buffers of [most tokens, columns], of which a step uses the first rows.

    op.record()      what C++ runs; None where only torch has it
    op.twin(step)    the same by torch, on any device

Buffers that a product reads are padded to PAD columns of zeros, so that no tile of it ends inside one.
"""

from __future__ import annotations

from typing import Protocol

import torch

from rayplane.kernels.records import OpRecord, Step

Tensor = torch.Tensor
PAD = 32


class Op(Protocol):
    """One op."""

    def record(self) -> OpRecord | None:
        """For C++; None where there is no such op in C++."""

    def twin(self, step: Step) -> None:
        """The same by torch."""


def padded(columns: int) -> int:
    """Columns of a buffer."""
    return -(-columns // PAD) * PAD


def buffer(rows: int, columns: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Zeros [rows, columns] whose rows lie `padded(columns)` apart."""
    return torch.zeros(rows, padded(columns), dtype=dtype, device=device)[:, :columns]
