"""The parts of a transformer block. They know tensor names and axes; of ranks only the tp Communicator that they are given.

    B batch   S sequence   N = B * S tokens   n tokens of this rank's residual stream (N, or under sp its rows of them)
    H hidden   O rows of a weight on this rank

Each autograd Function returns the gradient of its input and hands the gradient of its weight to GradWork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from rayplane.comm.communicator import Communicator
from rayplane.comm.functions import Rows, leave, start_sum, start_whole
from rayplane.model.matmul import add_product, linear
from rayplane.model.parameter import Add, GradWork, Weight, weight
from rayplane.model.presence import Presence
from rayplane.spec.layout import split
from rayplane.spec.sharding import TensorSpec, tp_chunk

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """What a layer must know of where it runs."""

    tp: Communicator
    cp: Communicator
    grads: GradWork
    dtype: torch.dtype
    sp: bool = False
    cp_method: str = "ring"
    recompute: str = "none"
    """What backward computes again instead of keeping it: none, selective (attention and the gated product), full (whole layers)."""
    recompute_layers: int = 0
    """How many layers of a chunk do so, from its first on; 0 all."""
    presence: Presence | None = None
    """Brings weights that are not there between uses; None where all are."""

    def rows(self, num_tokens: int) -> Rows:
        """Tokens of the residual stream on each tp rank under sp; None without sp."""
        if not self.sp or self.tp.size == 1:
            return None
        return [split(num_tokens, self.tp.size, i)[1] for i in range(self.tp.size)]

    def of_layer(self, index: int) -> Place:
        """Where layer `index` of a chunk runs."""
        return replace(self, recompute="none") if 0 < self.recompute_layers <= index else self

    def again(self, level: str, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """function(*inputs), keeping only the inputs for backward where the job recomputes at this level (Chen et al., 2016)."""
        if self.recompute != level or not torch.is_grad_enabled():
            return function(*inputs)
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)

    def whole(self, x: Tensor, rows: Rows) -> Tensor:
        """The residual stream before a cut weight, without its backward: [n, H] -> [N, H]."""
        return start_whole(x, self.tp, rows)()

    def summed(self, y: Tensor, rows: Rows) -> Tensor:
        """Partial results behind a cut weight as part of the residual stream: [N, H] -> [n, H]."""
        return leave(y, self.tp, rows)

    def weight(self, *tensors: TensorSpec, partial: bool = False) -> Weight:
        """This rank's part of some global tensors, stacked by rows."""
        return weight(tensors, [tp_chunk(t, self.tp.size, self.tp.rank) for t in tensors], self.dtype, partial)


class _ColumnLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Weight, bias: Weight | None, place: Place, rows: Rows) -> Tensor:
        ctx.save_for_backward(x)
        ctx.w, ctx.bias, ctx.place, ctx.rows = w, bias, place, rows
        return linear(place.whole(x, rows), w, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        place, rows = ctx.place, ctx.rows

        def start() -> Add:
            whole = start_whole(x, place.tp, rows)
            return lambda buffer: add_product(buffer, dy.t(), whole())

        place.grads.push_start(ctx.w, start)
        if ctx.bias is not None:
            place.grads.push(ctx.bias, lambda buffer: add_rows(buffer, dy))
        finish = start_sum(linear(dy, ctx.w.t()), place.tp, rows)
        place.grads.run()
        return finish(), None, None, None, None


class ColumnLinear(nn.Module):
    """x @ W.T + b for this rank's rows of W, and `enter` before it: x is this rank's rows of the residual stream.

    Only they are kept for backward, which gathers them again (Korthikanti et al., 2022, section 4.2.2):

        gather of x   ──────────▶
        compute         dy W      what was put off; dy.T x
        sum of dy W               ──────────▶
    """

    def __init__(self, place: Place, tensors: Sequence[TensorSpec], biases: Sequence[TensorSpec] = ()):
        super().__init__()
        self.weight = place.weight(*tensors)
        self.bias = place.weight(*biases) if biases else None
        self._place = place

    def forward(self, x: Tensor, rows: Rows) -> Tensor:  # [n, H] -> [N, O]
        return _ColumnLinear.apply(x, self.weight, self.bias, self._place, rows)


class _RowLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Weight, grads: GradWork) -> Tensor:
        ctx.save_for_backward(x)
        ctx.w, ctx.grads = w, grads
        return linear(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        ctx.grads.push(ctx.w, lambda buffer: add_product(buffer, dy.t(), x))
        return linear(dy, ctx.w.t()), None, None


class RowLinear(nn.Module):
    """x @ W.T for this rank's columns of W: its partial result, to be summed over tp (`Place.summed`)."""

    def __init__(self, place: Place, tensor: TensorSpec):
        super().__init__()
        self.weight = place.weight(tensor)
        self._grads = place.grads

    def forward(self, x: Tensor) -> Tensor:  # [N, columns] -> [N, H]
        return _RowLinear.apply(x, self.weight, self._grads)


def add_rows(buffer: Tensor, rows: Tensor) -> None:
    """buffer += the sum of the rows, in fp32."""
    buffer.add_(rows.sum(0, dtype=buffer.dtype))


class _AddBias(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Weight, grads: GradWork) -> Tensor:
        ctx.bias, ctx.grads = bias, grads
        ctx.mark_dirty(x)
        return x.add_(bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        # Summed at once: a schedule that holds weight work back would else keep dy alive.
        db = dy.sum(0, dtype=torch.float32)
        ctx.grads.push(ctx.bias, lambda buffer: buffer.add_(db))
        return dy, None, None


class Bias(nn.Module):
    """The bias behind a row-parallel weight, added once to the residual stream: after the sum over tp, by every rank to its rows."""

    def __init__(self, place: Place, tensor: TensorSpec):
        super().__init__()
        self.weight = place.weight(tensor, partial=place.sp)
        self._grads = place.grads

    def forward(self, x: Tensor) -> Tensor:  # [n, H] -> [n, H], in place
        return _AddBias.apply(x, self.weight, self._grads)


class _SwiGlu(Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        out = torch.empty_like(gate_up)
        dgate, dup = out.chunk(2, -1)
        silu = gate * sigmoid
        torch.mul(dy, silu, out=dup)
        # d silu(g) / dg = s + g s (1 - s) = s + silu (1 - s)
        torch.mul(dy, up, out=dgate).mul_(sigmoid.add_(silu.mul_(1 - sigmoid)))
        return out


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for [..., gate | up] (Shazeer, GLU variants, 2020)."""
    return _SwiGlu.apply(gate_up)


def gelu(up: Tensor) -> Tensor:
    """x Phi(x) in its tanh form (Hendrycks and Gimpel, 2016), which GPT-2 uses."""
    return F.gelu(up, approximate="tanh")
