"""Seconds that one microbatch takes on the fullest rank of a stage, part by part: a layer, the embedding, the head with its loss.

                                                                           input gradient          weight gradient
GEMM          t0 + 2 · weights · tokens / (efficiency · peak)              once more               once more
attention     4 · keys · width · tokens / (share of peak at S · peak)      2.5 FLOPs at 0.85 rate  -        keys: S/2, less in a window
element-wise  bytes / (0.78 · memory bandwidth)                            twice the bytes         gradients added up
launch        a floor under each layer where host and device work side by side, added where one core does both

A product's FLOPs are those of whole waves of tiles; under bf16 its weight's gradient is then added to the one in fp32. The head's
gradients are taken in the forward, while the logits are there. Recomputation adds the attention's forward (selective), or the layer's
(full), to the input gradient. With sp, norms and residual sums run on 1 / tp of the tokens. Document masks do not lower the price:
attention counts as over whole sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayplane.plan.machine import kernels
from rayplane.plan.machine.catalog import DeviceKind
from rayplane.plan.machine.kernels import Attention, memory_s, product_s
from rayplane.plan.step.practice import RAYPLANE, Practice
from rayplane.plan.step.share import Share
from rayplane.spec.model import ModelSpec

OPTIMIZER_BYTES = 32
"""Memory traffic of AdamW per parameter: weight, gradient and two moments in fp32, read and written."""
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp8": 2, "fp4": 2}
"""Of an activation: below bf16 only the products of the layers are computed."""
WIDE = {"fp8": "bf16", "fp4": "bf16"}
"""What attention and the head are computed in."""
COPIES = 4.0
"""Elements read and written per element of q, k and v: split from each other, laid out by head, and back again."""
CAST_BYTES = 4
"""Per element of a product's operand: read in bf16, written twice below it, as it is and transposed for the weight's gradient."""
NORM = {True: 2.5, False: 30.0}
"""Elements read and written per element in the forward of a norm, half of those in backward: in one kernel, or by single operations in
fp32 (18 forward, far more in backward)."""
FUSED = (2.0, {"swiglu": 3.0, "gelu": 2.0})
"""The same of a rotation per element and of an activation per width, one kernel each."""
EAGER = (5.0, {"swiglu": 4.5, "gelu": 2.0})
"""The same in single operations."""
ACCUMULATED_BYTES = 4
"""Per weight and microbatch where the product adds to the gradient itself: half of reading and writing it hides behind the product."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of the forward, and of the two halves of the backward."""

    forward: float
    input_grad: float
    weight_grad: float

    @property
    def backward(self) -> float:
        """Both halves."""
        return self.input_grad + self.weight_grad

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward + self.input_grad + self.weight_grad

    def plus(self, other: Seconds, times: float = 1.0) -> Seconds:
        """The sum of these and `times` the others."""
        return Seconds(
            self.forward + times * other.forward,
            self.input_grad + times * other.input_grad,
            self.weight_grad + times * other.weight_grad,
        )


NONE = Seconds(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One microbatch on the fullest rank of a tp group."""

    model: ModelSpec
    share: Share
    device: DeviceKind
    precision: str
    seq_len: int
    samples: int
    sp: bool = False
    recompute: str = "none"
    cp: int = 1
    offload: bool = False
    practice: Practice = RAYPLANE

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch on a rank."""
        return self.samples * math.ceil(self.seq_len / self.cp)

    @property
    def activation_bytes(self) -> int:
        """Bytes of one [tokens, hidden] activation."""
        return self.tokens * self.model.hidden * ITEM_BYTES[self.precision]

    @property
    def residual_bytes(self) -> int:
        """Bytes of what a rank has of an activation between attention and feed-forward: under sp a part of the sequence."""
        return math.ceil(self.activation_bytes / self.residual_cut)

    @property
    def residual_cut(self) -> int:
        """Ranks that share the residual stream of a sequence."""
        return self.share.tp if self.sp else 1

    @property
    def loss_rows(self) -> int:
        """Rows of the vocabulary that a rank computes the loss over."""
        return self.model.vocab if self.practice.gathered_logits else self.share.vocab_rows

    @property
    def up_matrices(self) -> int:
        """Gate and up, or up alone."""
        return 2 if self.model.act == "swiglu" else 1

    @property
    def without_recompute(self) -> Microbatch:
        """The same, keeping all that a backward needs."""
        return replace(self, recompute="none")

    @property
    def wide(self) -> Microbatch:
        """The same in the precision of attention and the head."""
        return replace(self, precision=WIDE[self.precision]) if self.precision in WIDE else self

    def product_s(self, rows: int, columns: int) -> Seconds:
        """All tokens times a weight of so many rows and columns, and the products of its backward."""
        shapes = (self.tokens, rows, columns), (self.tokens, columns, rows), (rows, columns, self.tokens)
        seconds = (product_s(self.device, self.precision, s) for s in shapes)
        return Seconds(*(s * ratio for s, ratio in zip(seconds, self.device.ratios.products, strict=True)))


def layer(work: Microbatch, products: Seconds | None = None) -> Seconds:
    """One transformer layer; its matrix products, where they are known already."""
    device, params = work.device, sum(work.share.stacked)
    gemm = products or layer_products(work)
    forward, backward = attention_s(work)
    traffic, traffic_back = (memory_s(device, work.tokens * n) for n in _traffic(work))
    launch = device.launch_us * 1e-6
    whole = _launched(device, gemm.forward + forward + traffic, launch / 3)
    again = {"none": 0.0, "selective": forward, "full": whole}[work.recompute]
    if work.recompute == "selective" and work.practice.selective_products:
        again = traffic + gemm.forward / 2
    input_grad = _launched(device, gemm.input_grad + backward + traffic_back, launch / 2)
    weight_grad = gemm.weight_grad + memory_s(device, _accumulation_bytes(work) * params)
    return Seconds(whole, input_grad + again, _launched(device, weight_grad, launch / 6))


def layer_products(work: Microbatch) -> Seconds:
    """The matrix products of one layer."""
    out = NONE
    for rows, columns in work.share.shapes:
        out = out.plus(work.product_s(rows, columns))
    if work.precision not in WIDE:
        return out
    cast = memory_s(work.device, CAST_BYTES * work.tokens * sum(rows + columns for rows, columns in work.share.shapes) / 2)
    return Seconds(out.forward + cast, out.input_grad + cast, out.weight_grad)


def attention_s(work: Microbatch) -> tuple[float, float]:
    """Scores and their product with the values, of one layer's forward and backward."""
    share, model = work.share, work.model
    heads, keys = share.q_width / model.head_dim, model.mean_keys(work.seq_len)
    of = Attention(work.tokens, share.q_width, heads, keys, work.seq_len)
    return kernels.attention_s(work.device, work.wide.precision, work.practice.attention, work.practice.dropout, of)


def embedding(work: Microbatch) -> Seconds:
    """Looking the rows up, and adding to their gradients in fp32."""
    forward = memory_s(work.device, 2 * work.activation_bytes)
    return Seconds(forward, 0.0, memory_s(work.device, work.activation_bytes + 8 * work.tokens * work.model.hidden))


def head(work: Microbatch) -> Seconds:
    """Final norm, logits and cross-entropy in fp32, with both gradients: six passes over the logits; backward only the norm's."""
    params = work.share.vocab_rows * work.model.hidden
    gemm = work.wide.product_s(work.share.vocab_rows, work.model.hidden)
    norm = memory_s(work.device, 2 * work.residual_bytes)
    loss = memory_s(work.device, 6 * 4 * work.tokens * work.loss_rows)
    added = memory_s(work.device, _accumulation_bytes(work) * params)
    if not work.practice.logit_bytes:
        whole = Seconds(gemm.total + loss + added + norm, norm, 0.0)
    else:
        whole = Seconds(gemm.forward + loss / 2 + norm, gemm.input_grad + loss / 2 + norm, gemm.weight_grad + added)
    return NONE.plus(whole, work.device.ratios.head)


def optimizer_s(device: DeviceKind, params: int, precision: str, offload: bool) -> float:
    """AdamW over the parameters of one rank; offloaded, gradients go down, the host updates its copy, and weights go up, side by side
    unless the device is the host."""
    if not offload:
        return device.ratios.optimizer * memory_s(device, OPTIMIZER_BYTES * params)
    bytes_s = device.host_copy_gbytes_s * 1e9
    ways = (4 * params / bytes_s, OPTIMIZER_BYTES * params / (device.host_gbytes_s * 1e9), ITEM_BYTES[precision] * params / bytes_s)
    return sum(ways) if device.is_host else max(ways)


def _accumulation_bytes(work: Microbatch) -> int:
    """Per weight and microbatch, beside the product: its result is written and read, the gradient read and written."""
    if work.precision == "fp32":
        return 0
    if work.practice.fused_accumulation:
        return ACCUMULATED_BYTES
    return 4 + 2 * min(work.practice.gradient_bytes, 4)


def _traffic(work: Microbatch) -> tuple[float, float]:
    """Bytes per token of forward and backward: two norms and two residual sums, rotation of q and k, the activation."""
    share, practice, item = work.share, work.practice, ITEM_BYTES[work.precision]
    stream = 2 * work.model.hidden / work.residual_cut
    rotated = share.q_width + share.kv_width if work.model.positions == "rope" else 0
    norm = NORM[practice.fused_norms]
    turn, act = FUSED if practice.fused else EAGER
    sums = 3 + (1.5 if practice.dropout else 0)
    moved = COPIES * (share.q_width + 2 * share.kv_width)
    forward = stream * (norm + sums) + turn * rotated + moved + act[work.model.act] * share.mlp_width
    return forward * item, 2 * forward * item


def _launched(device: DeviceKind, seconds: float, launch_s: float) -> float:
    return max(seconds, launch_s) if device.overlap else seconds + launch_s
