"""The head and the loss in one: cross-entropy of logits that never exist as a whole.

    logits = x W^T       loss = sum over tokens of  log(sum_v exp logits_v) - logits_target

W's rows are cut over tp, so the log-sum-exp takes one max and one sum over tp; tokens go through in slices, so that at most
SLICE_ELEMENTS logits exist at a time. With gradients on, each slice's gradients are taken while its logits are there:
d logits = (softmax - onehot) * scale gives the gradient of x, summed over tp and kept for backward, and of W, added to its buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from rayplane.comm.communicator import Communicator
from rayplane.comm.functions import Rows, start_sum, start_whole
from rayplane.model.layers import Place
from rayplane.model.matmul import add_product, linear
from rayplane.model.parameter import GradWork, Weight
from rayplane.model.presence import during
from rayplane.spec.sharding import TensorSpec

Tensor = torch.Tensor
SLICE_ELEMENTS = 1 << 22
IGNORED = -100
"""A target that does not count: it adds nothing to the loss or to any gradient."""


class _HeadLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Weight, targets: Tensor, scale: float, rows: Rows, head: Head) -> Tensor:
        whole, summed = start_whole(x, head.tp, rows)(), None
        loss = x.new_zeros((), dtype=torch.float32)
        dx = torch.empty_like(whole) if ctx.needs_input_grad[0] else None
        size = max(1, SLICE_ELEMENTS // head.widest)
        for begin in range(0, whole.shape[0], size):
            part = slice(begin, begin + size)
            probabilities, token_loss = head.softmax(linear(whole[part], w), targets[part])
            counts = targets[part] != IGNORED
            loss += token_loss.masked_fill_(~counts, 0.0).sum() * scale
            if dx is not None:
                dlogits = head.subtract_target(probabilities, targets[part]).mul_((counts * scale)[:, None]).to(x.dtype)
                dx[part] = linear(dlogits, w.t())
                if part.stop >= whole.shape[0]:
                    summed = start_sum(dx, head.tp, rows)
                head.add_weight_grad(dlogits, whole[part])
        ctx.save_for_backward(summed() if summed else dx)
        ctx.w, ctx.grads = w, head.grads
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (dx,) = ctx.saved_tensors
        ctx.grads.push(ctx.w, lambda buffer: None)
        return dx * dloss.to(dx.dtype), None, None, None, None, None


class Head(nn.Module):
    """Output projection over this rank's vocabulary rows. Shares its Weight with the embedding when tied on one stage."""

    def __init__(self, place: Place, tensor: TensorSpec, shared: Weight | None = None):
        super().__init__()
        self.weight = shared if shared is not None else place.weight(tensor)
        self._first = self.weight.parts[0].chunk.offset[0]
        self._place = place
        # Every tp rank must cut the tokens into the same slices, though their numbers of rows may differ by one; rank 0 has most.
        self.widest = tensor.dims[0].span(place.tp.size, 0)[1]
        self.tp: Communicator = place.tp
        self.grads: GradWork = place.grads

    def loss(self, x: Tensor, targets: Tensor, scale: float) -> Tensor:
        """scale * sum of the cross-entropies of targets [N] given x [n, H]; a scalar in fp32, equal on every tp rank.

        Its gradient must be taken with a gradient of 1: the weight's part is added here, at forward time.
        """
        with during(self._place.presence, self):
            return _HeadLoss.apply(x, self.weight, targets, scale, self._place.rows(targets.shape[0]), self)

    def logits(self, x: Tensor) -> Tensor:  # [N, H] -> [N, vocabulary]
        """All logits, gathered over tp; for inspection and sampling, not for training."""
        vocabulary = [self.weight.parts[0].tensor.dims[0].span(self.tp.size, i)[1] for i in range(self.tp.size)]
        with during(self._place.presence, self):
            return self.tp.all_gather((x @ self.weight.t()).t(), vocabulary).t()

    def softmax(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # [N, V], [N] -> [N, V], [N]
        """(this rank's probabilities, loss per token), in fp32."""
        logits = logits.float()
        top = self.tp.all_reduce(logits.amax(-1), "max")
        logits.sub_(top[:, None])
        target_logit = self._take_target(logits, targets)
        total = logits.exp_().sum(-1)
        total, target_logit = self.tp.all_reduce(torch.stack((total, target_logit)))
        return logits.div_(total[:, None]), total.log() - target_logit

    def subtract_target(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        """Take 1 off at each target that is among this rank's rows, in place."""
        local, inside = self._local(targets)
        return probabilities.scatter_add_(1, local[:, None], -inside.to(probabilities.dtype)[:, None])

    def add_weight_grad(self, dlogits: Tensor, x: Tensor) -> None:
        """Add a slice's part to the weight's gradient."""
        add_product(self.grads.buffer(self.weight), dlogits.t(), x)

    def _take_target(self, logits: Tensor, targets: Tensor) -> Tensor:
        local, inside = self._local(targets)
        return logits.gather(1, local[:, None]).squeeze(1) * inside

    def _local(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(row on this rank, whether it is here) of each target."""
        local = targets - self._first
        inside = (local >= 0) & (local < self.weight.shape[0])
        return torch.where(inside, local, 0), inside
