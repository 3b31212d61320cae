"""Sums and gathers of serving through a Communicator: between hosts, on GPUs, and where ranks of a host share no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rayplane.comm.communicator import Communicator
from rayplane.kernels.records import Step

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class AxisSum:
    """out [tokens, H] = or += the sum over the axis of parts [tokens, H] fp32, + bias."""

    axis: Communicator
    parts: Tensor
    out: Tensor
    bias: Tensor | None
    add: bool

    def record(self) -> None:
        return None

    def twin(self, step: Step) -> None:
        rows = slice(0, step.tokens.shape[0])
        total = self.axis.all_reduce(self.parts[rows].contiguous())
        total = total if self.bias is None else total + self.bias.float()
        self.out[rows] = total + self.out[rows].float() if self.add else total


@dataclass(frozen=True, slots=True)
class AxisGather:
    """out [rows, V] of each rank's part [rows, V of the rank]."""

    axis: Communicator
    part: Tensor
    out: Tensor
    sizes: Sequence[int]

    def record(self) -> None:
        return None

    def twin(self, step: Step) -> None:
        rows = slice(0, step.rows.shape[0])
        self.out[rows] = self.axis.all_gather(self.part[rows].t(), self.sizes).t()
