"""Communication inside a layer, visible and in pairs: `enter` before weights that are cut over tp, `leave` behind them.

                   forward                        backward
    enter(x)       x                              all-reduce of the gradient of x
    leave(y)       all-reduce of y                gradient as it is
    enter, sp      all-gather of the rows of x    reduce-scatter of the gradient of x
    leave, sp      reduce-scatter of y            all-gather of the gradient's rows

(Shoeybi et al., Megatron-LM, section 3: operators f and g; Korthikanti et al., 2022, section 4.2.2: g and its conjugate under sequence
parallelism.) Activations are [tokens, ...], and sp cuts the tokens, evenly or not: the same bytes, half at a time. Weight gradients
that were put off run while `enter`'s backward communication is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from rayplane.comm.communicator import Communicator

Tensor = torch.Tensor
Rows = Sequence[int] | None
"""Tokens on each tp rank under sp; None without sp."""


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Communicator, rows: Rows, meanwhile: Callable[[], None]) -> Tensor:
        ctx.tp, ctx.rows, ctx.meanwhile = tp, rows, meanwhile
        return x.view_as(x) if rows is None else tp.all_gather(x, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grad.contiguous()
        if ctx.rows is None:
            out, finish = grad, ctx.tp.start_all_reduce(grad)
        else:
            out, finish = ctx.tp.start_reduce_scatter(grad, ctx.rows)
        ctx.meanwhile()
        finish()
        return out, None, None, None


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, tp: Communicator, rows: Rows) -> Tensor:
        ctx.tp, ctx.rows = tp, rows
        if rows is not None:
            return tp.reduce_scatter(y, rows)
        ctx.mark_dirty(y)
        return tp.all_reduce(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad if ctx.rows is None else ctx.tp.all_gather(grad, ctx.rows), None, None


def enter(x: Tensor, tp: Communicator, rows: Rows, meanwhile: Callable[[], None]) -> Tensor:
    """x [tokens or this rank's rows of them, ...] whole, before a column-parallel weight; `meanwhile` runs beside backward's sum."""
    return x if tp.size == 1 else _Enter.apply(x, tp, rows, meanwhile)


def leave(y: Tensor, tp: Communicator, rows: Rows) -> Tensor:
    """The sum over tp of partial results y [tokens, ...] (overwritten without sp), after a row-parallel weight; under sp its rows."""
    return y if tp.size == 1 else _Leave.apply(y, tp, rows)
