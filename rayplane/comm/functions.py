"""Communication inside a layer, visible and in pairs: `enter` before weights that are cut over tp, `leave` behind them.

                 forward              backward
    enter(x)     x                    all-reduce of the gradient of x
    leave(y)     all-reduce of y      gradient as it is

(Shoeybi et al., Megatron-LM, section 3: the conjugate operators f and g.) Weight gradients that were put off run while `enter`'s
all-reduce is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function

from rayplane.comm.communicator import Communicator

Tensor = torch.Tensor


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: Communicator, meanwhile: Callable[[], None]) -> Tensor:
        ctx.tp, ctx.meanwhile = tp, meanwhile
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.contiguous()
        finish = ctx.tp.start_all_reduce(grad)
        ctx.meanwhile()
        finish()
        return grad, None, None


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, tp: Communicator) -> Tensor:
        ctx.mark_dirty(y)
        return tp.all_reduce(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def enter(x: Tensor, tp: Communicator, meanwhile: Callable[[], None]) -> Tensor:
    """x, before a column-parallel weight; `meanwhile` runs in backward while the gradient is summed over tp."""
    return x if tp.size == 1 else _Enter.apply(x, tp, meanwhile)


def leave(y: Tensor, tp: Communicator) -> Tensor:
    """The sum over tp of partial results y (overwritten), after a row-parallel weight."""
    return y if tp.size == 1 else _Leave.apply(y, tp)
