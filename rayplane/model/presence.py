"""Weights that are in memory only while their module works, as under ZeRO-3: opened before it, closed behind it, in both directions.

    forward     open ─▶ module ─▶ close          backward     close ◀─ module ◀─ open

The model says where; what opening means (gathering the weights from the ranks that hold them) is the trainer's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd import Function

Tensor = torch.Tensor


class Presence(Protocol):
    """Makes the weights of modules be there."""

    def open(self, module: nn.Module, backward: bool) -> None:
        """Before the module works; `backward` tells in which direction the next modules follow."""

    def close(self, module: nn.Module) -> None:
        """After the module has worked."""


class _Begin(Function):
    """In front of a module: the last to run of its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module, presence: Presence) -> Tensor:
        ctx.module, ctx.presence = module, presence
        presence.open(module, backward=False)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.presence.close(ctx.module)
        return grad, None, None


class _End(Function):
    """Behind a module: the first to run of its backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, module: nn.Module, presence: Presence) -> Tensor:
        ctx.module, ctx.presence = module, presence
        presence.close(module)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.presence.open(ctx.module, backward=True)
        return grad, None, None


def around(presence: Presence | None, module: nn.Module, x: Tensor, *rest: Any) -> Tensor:
    """module(x, *rest), with its weights there for that and for its backward."""
    if presence is None:
        return module(x, *rest)
    return _End.apply(module(_Begin.apply(x, module, presence), *rest), module, presence)


@contextmanager
def during(presence: Presence | None, module: nn.Module) -> Iterator[None]:
    """The module's weights are there inside: for one whose backward does without them."""
    if presence is None:
        yield
        return
    presence.open(module, backward=False)
    yield
    presence.close(module)
