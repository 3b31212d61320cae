"""Communication inside a layer, visible and in pairs: enter before weights cut over tp by columns, leave behind those cut by rows.

                   forward                        backward
    enter          whole x                        sum of the gradient of x
    leave          sum of y                       whole gradient

                   without sp                     under sp
    whole          as it is                       all-gather of the rows
    sum            all-reduce                     reduce-scatter

(Shoeybi et al., Megatron-LM, section 3: operators f and g; Korthikanti et al., 2022, section 4.2.2: g and its conjugate under sequence
parallelism.) Activations are [tokens, ...], and sp cuts the tokens, evenly or not: the same bytes, half at a time. Who enters has
weight gradients to compute beside the communication of backward, so enter is part of its layer (`ColumnLinear`, `Head`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import Function

from rayplane.comm.communicator import Communicator
from rayplane.comm.transport import Wait

Tensor = torch.Tensor
Rows = Sequence[int] | None
"""Tokens on each tp rank under sp; None without sp."""
Awaited = Callable[[], Tensor]
"""Waits for an operation that was started and gives its result."""


def start_whole(x: Tensor, tp: Communicator, rows: Rows) -> Awaited:
    """Begin to make an activation whole of which each tp rank has its rows: [n, ...] -> [N, ...]."""
    return (lambda: x) if rows is None else _awaited(*tp.start_all_gather(x, rows))


def start_sum(y: Tensor, tp: Communicator, rows: Rows) -> Awaited:
    """Begin to sum partial results y over tp: [N, ...] in place, or under sp -> this rank's rows of the sum, [n, ...]."""
    return _awaited(y, tp.start_all_reduce(y)) if rows is None else _awaited(*tp.start_reduce_scatter(y, rows))


def leave(y: Tensor, tp: Communicator, rows: Rows) -> Tensor:
    """The sum over tp of partial results y [tokens, ...] (overwritten without sp), after a row-parallel weight; under sp its rows."""
    return y if tp.size == 1 else _Leave.apply(y, tp, rows)


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, tp: Communicator, rows: Rows) -> Tensor:
        ctx.tp, ctx.rows = tp, rows
        if rows is None:
            ctx.mark_dirty(y)
        return start_sum(y, tp, rows)()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return start_whole(grad, ctx.tp, ctx.rows)(), None, None


def _awaited(result: Tensor, wait: Wait) -> Awaited:
    def finish() -> Tensor:
        wait()
        return result

    return finish
