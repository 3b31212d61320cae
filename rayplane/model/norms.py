"""Norms over the last dim, in fp32 whatever the activations' dtype.

    RmsNorm      x / rms(x) * w                          (Zhang and Sennrich, 2019)
    LayerNorm    (x - mean(x)) / std(x) * w + b          (Ba et al., 2016)

Like the layers, they hand the gradients of their weights to GradWork.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd import Function

from rayplane.model.layers import Place
from rayplane.model.parameter import GradWork, Weight
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import TensorSpec

Tensor = torch.Tensor


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Weight, eps: float, grads: GradWork) -> Tensor:
        x32 = x.float()
        inverse = torch.rsqrt(x32.square().mean(-1, keepdim=True).add_(eps))
        ctx.save_for_backward(x, inverse)
        ctx.w, ctx.grads = w, grads
        return (x32 * inverse).to(x.dtype).mul_(w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        x, inverse = ctx.saved_tensors
        normed = x.float() * inverse
        dy32 = dy.float()
        # Summed at once: a schedule that holds weight work back would else keep both factors alive.
        dw = (dy32 * normed).flatten(0, -2).sum(0)
        ctx.grads.push(ctx.w, lambda buffer: buffer.add_(dw))
        scaled = dy32 * ctx.w.float()
        dx = scaled.sub(normed * (scaled * normed).mean(-1, keepdim=True)).mul_(inverse)
        return dx.to(x.dtype), None, None, None


class RmsNorm(nn.Module):
    """x / rms(x) * w.

    `heads`: it norms this rank's heads, so that each tp rank has a part of its gradient; so it does of the residual stream under sp.
    """

    def __init__(self, place: Place, tensor: TensorSpec, eps: float, heads: bool = False):
        super().__init__()
        self.weight = place.weight(tensor, partial=heads or place.sp)
        self._eps, self._grads = eps, place.grads

    def forward(self, x: Tensor) -> Tensor:  # [..., n] -> [..., n]
        return _RmsNorm.apply(x, self.weight, self._eps, self._grads)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Weight, bias: Weight, eps: float, grads: GradWork) -> Tensor:
        out, mean, inverse = torch.native_layer_norm(x.float(), [x.shape[-1]], w.float(), bias.float(), eps)
        ctx.save_for_backward(x, mean, inverse)
        ctx.w, ctx.bias, ctx.grads = w, bias, grads
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, mean, inverse = ctx.saved_tensors
        x32, dy32, w32 = x.float(), dy.float(), ctx.w.float()
        dw, dbias = (dy32 * (x32 - mean) * inverse).sum(0), dy32.sum(0)
        ctx.grads.push(ctx.w, lambda buffer: buffer.add_(dw))
        ctx.grads.push(ctx.bias, lambda buffer: buffer.add_(dbias))
        dx, _, _ = torch.ops.aten.native_layer_norm_backward(
            dy32, x32, [x.shape[-1]], mean, inverse, w32, ctx.bias.float(), [True, False, False]
        )
        return dx.to(x.dtype), None, None, None, None


class LayerNorm(nn.Module):
    """(x - mean) / std * w + b of the residual stream; under sp each tp rank has a part of its gradients."""

    def __init__(self, place: Place, tensor: TensorSpec, bias: TensorSpec, eps: float):
        super().__init__()
        self.weight = place.weight(tensor, partial=place.sp)
        self.bias = place.weight(bias, partial=place.sp)
        self._eps, self._grads = eps, place.grads

    def forward(self, x: Tensor) -> Tensor:  # [n, H] -> [n, H]
        return _LayerNorm.apply(x, self.weight, self.bias, self._eps, self._grads)


def stream_norm(place: Place, spec: ModelSpec, tensors: dict[str, TensorSpec], name: str) -> RmsNorm | LayerNorm:
    """The model's norm of the residual stream, with the tensors `name` and for a layer norm `name`_bias."""
    if spec.norm == "layernorm":
        return LayerNorm(place, tensors[name], tensors[f"{name}_bias"], spec.norm_eps)
    return RmsNorm(place, tensors[name], spec.norm_eps)
