"""Products with weights, y = x W^T + b, and what becomes of y.

    STORE       out = y                      ADD     out += y        into the residual stream
    STORE_F32   out = y, not narrowed        GATED   out = silu(gate) * up, of W's two halves        GELU   out = gelu(y)

PackedLinear is C++'s, in bf16; PlainLinear is torch's, on a CPU oneDNN's with the weight in the order that it likes best. It ends in
one of the first three only.
Either way the weight that it was made of is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F

from rayplane.kernels.native import Native
from rayplane.kernels.op import PAD, padded
from rayplane.kernels.records import Kind, OpRecord, Step, record

Tensor = torch.Tensor
ONEDNN = torch.backends.mkldnn.is_available()
HALF_PAIR = 16
"""Rows of gate and rows of up that lie side by side."""


class Ending(IntEnum):
    """What becomes of the product."""

    STORE = 0
    ADD = 1
    STORE_F32 = 2
    GATED = 3
    GELU = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """A bf16 weight [rows, columns] packed for C++ (source/matmul.hpp); `bias` follows its order."""

    data: Tensor
    bias: Tensor | None
    rows: int
    """Padded."""
    columns: int
    """Padded."""

    def product(self, x: Tensor, out: Tensor, ending: Ending, wanted: bool = False) -> PackedLinear:
        """The op; x and out as in PackedLinear."""
        return PackedLinear(x, self, out, ending, wanted)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """x [tokens, K] -> out [tokens, N]; with `wanted`, of as many rows as logits are wanted."""

    x: Tensor
    weight: Packed
    out: Tensor
    ending: Ending
    wanted: bool

    def record(self) -> OpRecord:
        w = self.weight
        sizes = (w.columns, w.rows, self.x.stride(0), self.out.stride(0), self.out.shape[1], self.ending, self.wanted)
        return record(Kind.LINEAR, self.x.dtype, (self.x, w.data, self.out, w.bias), sizes)

    def twin(self, step: Step) -> None:
        raise NotImplementedError("weights are packed only where C++ multiplies them")


@dataclass(frozen=True, slots=True)
class Plain:
    """A weight for torch."""

    data: Tensor
    bias: Tensor | None
    onednn: bool

    def product(self, x: Tensor, out: Tensor, ending: Ending, wanted: bool = False) -> PlainLinear:
        """The op; x and out as in PlainLinear."""
        return PlainLinear(x, self, out, ending, wanted)


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """x [tokens, K] -> out [tokens, N] by torch; with `wanted`, of as many rows as logits are wanted."""

    x: Tensor
    weight: Plain
    out: Tensor
    ending: Ending
    wanted: bool

    def record(self) -> None:
        return None

    def twin(self, step: Step) -> None:
        num_rows = step.rows.shape[0] if self.wanted else step.tokens.shape[0]
        if not num_rows:
            return
        x, w, out = self.x[:num_rows], self.weight, self.out[:num_rows]
        y = torch.ops.mkldnn._linear_pointwise(x, w.data, w.bias, "none", [], "") if w.onednn else F.linear(x, w.data, w.bias)
        if self.ending == Ending.ADD:
            out += y
        else:
            out.copy_(y)


def pack(native: Native, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Packed:
    """A bf16 weight [N, K] for C++; with `gated`, its halves are interleaved by HALF_PAIR rows."""
    order = _gated_order(weight.shape[0] // 2) if gated else _padded_order(torch.arange(weight.shape[0]), PAD)
    columns = padded(weight.shape[1])
    ordered = None if bias is None else torch.where(order >= 0, bias[order.clamp(min=0)], 0.0)
    return Packed(native.pack(weight, order, columns), ordered, order.numel(), columns)


def prepack(weight: Tensor, bias: Tensor | None) -> Plain:
    """A weight [N, K] for torch, on a CPU in oneDNN's order."""
    if not ONEDNN or weight.device.type != "cpu" or not weight.numel():
        return Plain(weight, bias, onednn=False)
    return Plain(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias, onednn=True)


def _gated_order(size: int) -> Tensor:
    """gate 0-15, up 0-15, gate 16-31, ...; -1 where a half has no such row."""
    gate = _padded_order(torch.arange(size), HALF_PAIR).view(-1, 1, HALF_PAIR)
    return torch.cat((gate, torch.where(gate >= 0, gate + size, -1)), 1).flatten()


def _padded_order(rows: Tensor, unit: int) -> Tensor:
    return F.pad(rows, (0, -rows.numel() % unit), value=-1)
