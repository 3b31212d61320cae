"""Seconds that one microbatch takes on the fullest rank of a stage, part by part: a layer, the embedding, the head with its loss.

                                                                           input gradient          weight gradient
GEMM          t0 + 2 · weights · tokens / (efficiency · peak)              once more               once more
attention     4 · keys · width · tokens / (share of peak at S · peak)      2.5 FLOPs at 0.85 rate  -        keys: S/2, less in a window
element-wise  bytes / (0.7 · memory bandwidth)                             twice the bytes         -
launch        a floor under each layer where host and device work side by side, added where one core does both

The head's gradients are taken in the forward, while the logits are there. Recomputation adds the attention's forward (selective), or
the layer's (full), to the input gradient. With sp, norms and residual sums run on 1 / tp of the tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from rayplane.plan.catalog import DeviceKind
from rayplane.plan.share import Share
from rayplane.spec.model import ModelSpec

MEMORY_EFFICIENCY = 0.7
"""Share of the memory bandwidth that element-wise kernels and the optimizer reach."""
ATTENTION_BACKWARD = 2.5 / 0.85
"""Backward over forward time of flash attention: it computes the scores again (Dao et al., FlashAttention, section 3.1)."""
OPTIMIZER_BYTES = 32
"""Memory traffic of AdamW per parameter: weight, gradient and two moments in fp32, read and written."""
ITEM_BYTES = {"fp32": 4, "bf16": 2}


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
    def up_matrices(self) -> int:
        """Gate and up, or up alone."""
        return 2 if self.model.act == "swiglu" else 1

    @property
    def without_recompute(self) -> Microbatch:
        """The same, keeping all that a backward needs."""
        return replace(self, recompute="none")

    @property
    def rate(self) -> float:
        """Peak FLOP/s."""
        return self.device.peak_flops[self.precision]


def layer(work: Microbatch) -> Seconds:
    """One transformer layer."""
    gemm = sum(_gemm_s(work, 2.0 * n * work.tokens) for n in work.share.matrices)
    attention = attention_s(work)
    element_wise = _bytes_s(work.device, work.tokens * _layer_traffic(work))
    launch = work.device.launch_us * 1e-6
    forward = _launched(work.device, gemm + attention + element_wise, launch / 3)
    again = {"none": 0.0, "selective": attention, "full": forward}[work.recompute]
    input_grad = _launched(work.device, gemm + ATTENTION_BACKWARD * attention + 2 * element_wise, launch / 2)
    return Seconds(forward, input_grad + again, _launched(work.device, gemm, launch / 6))


def attention_s(work: Microbatch) -> float:
    """Scores and their product with the values, of one layer's forward."""
    flops = 4.0 * work.model.mean_keys(work.seq_len) * work.share.q_width * work.tokens
    return flops / (_attention_share(work.device, work.seq_len) * work.rate)


def embedding(work: Microbatch) -> Seconds:
    """Looking the rows up, and adding to their gradients in fp32."""
    forward = _bytes_s(work.device, 2 * work.activation_bytes)
    return Seconds(forward, 0.0, _bytes_s(work.device, work.activation_bytes + 8 * work.tokens * work.model.hidden))


def head(work: Microbatch) -> Seconds:
    """Final norm, logits and cross-entropy in fp32, with both gradients: six passes over the logits; backward only the norm's."""
    gemm = _gemm_s(work, 2.0 * work.share.vocab_rows * work.model.hidden * work.tokens)
    norm = _bytes_s(work.device, 2 * work.residual_bytes)
    return Seconds(3 * gemm + _bytes_s(work.device, 6 * 4 * work.tokens * work.share.vocab_rows) + norm, norm, 0.0)


def optimizer_s(device: DeviceKind, params: int) -> float:
    """AdamW over the parameters of one rank."""
    return _bytes_s(device, OPTIMIZER_BYTES * params)


def _gemm_s(work: Microbatch, flops: float) -> float:
    return work.device.gemm_t0_us * 1e-6 + flops / (work.device.gemm_efficiency * work.rate)


def _layer_traffic(work: Microbatch) -> float:
    """Bytes per token of the forward: two norms and two residual sums of `hidden`, rope over q and k, SiLU times up (or gelu)."""
    own = 2 * (work.share.q_width + work.share.kv_width) + (1 + work.up_matrices) * work.share.mlp_width
    return (10 * work.model.hidden / work.residual_cut + own) * ITEM_BYTES[work.precision]


def _bytes_s(device: DeviceKind, num_bytes: float) -> float:
    return num_bytes / (MEMORY_EFFICIENCY * device.hbm_gbytes_s * 1e9)


def _launched(device: DeviceKind, seconds: float, launch_s: float) -> float:
    return max(seconds, launch_s) if device.overlap else seconds + launch_s


def _attention_share(device: DeviceKind, seq_len: int) -> float:
    """Share of peak at a sequence length: between the table's points by the logarithm, beyond them the nearest."""
    table = device.attention
    if seq_len <= table[0][0]:
        return table[0][1]
    for (low, at_low), (high, at_high) in pairwise(table):
        if seq_len <= high:
            return at_low + (at_high - at_low) * math.log(seq_len / low) / math.log(high / low)
    return table[-1][1]
