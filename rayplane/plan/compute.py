"""Seconds that one microbatch takes on the fullest rank of a stage, part by part: a layer, the embedding, the head with its loss.

GEMM          t0 + 2 · weights · tokens / (efficiency · peak)              backward: twice as many
attention     2 · S · width · tokens / (share of peak at S · peak)         causal; backward: 2.5 times the FLOPs at 0.85 of the rate
element-wise  bytes / (0.7 · memory bandwidth)                             backward: twice the bytes
launch        a floor under each layer where host and device work side by side, added where one core does both
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    """Forward and backward time."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Both."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One microbatch on the fullest rank of a tp group."""

    model: ModelSpec
    share: Share
    device: DeviceKind
    precision: str
    seq_len: int
    samples: int

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch."""
        return self.samples * self.seq_len

    @property
    def activation_bytes(self) -> int:
        """Bytes of one [samples, seq_len, hidden] activation."""
        return self.tokens * self.model.hidden * ITEM_BYTES[self.precision]

    @property
    def rate(self) -> float:
        """Peak FLOP/s."""
        return self.device.peak_flops[self.precision]


def layer(work: Microbatch) -> Seconds:
    """One transformer layer."""
    gemm = sum(_gemm_s(work, 2.0 * n * work.tokens) for n in work.share.matrices)
    attention = 2.0 * work.seq_len * work.share.q_width * work.tokens / (_attention_share(work.device, work.seq_len) * work.rate)
    element_wise = _bytes_s(work.device, work.tokens * _layer_traffic(work))
    launch = work.device.launch_us * 1e-6
    return Seconds(
        _launched(work.device, gemm + attention + element_wise, launch / 3),
        _launched(work.device, 2 * gemm + ATTENTION_BACKWARD * attention + 2 * element_wise, launch * 2 / 3),
    )


def embedding(work: Microbatch) -> Seconds:
    """Looking the rows up, and adding to their gradients in fp32."""
    forward = _bytes_s(work.device, 2 * work.activation_bytes)
    return Seconds(forward, _bytes_s(work.device, work.activation_bytes + 8 * work.tokens * work.model.hidden))


def head(work: Microbatch) -> Seconds:
    """Final norm, logits and cross-entropy in fp32: three passes over the logits forward, three backward."""
    gemm = _gemm_s(work, 2.0 * work.share.vocab_rows * work.model.hidden * work.tokens)
    passes = _bytes_s(work.device, 3 * 4 * work.tokens * work.share.vocab_rows + 2 * work.activation_bytes)
    return Seconds(gemm + passes, 2 * gemm + passes)


def optimizer_s(device: DeviceKind, params: int) -> float:
    """AdamW over the parameters of one rank."""
    return _bytes_s(device, OPTIMIZER_BYTES * params)


def _gemm_s(work: Microbatch, flops: float) -> float:
    return work.device.gemm_t0_us * 1e-6 + flops / (work.device.gemm_efficiency * work.rate)


def _layer_traffic(work: Microbatch) -> int:
    """Bytes per token of the forward: two norms and two residual sums of `hidden`, rope over q and k, SiLU times up."""
    elements = 10 * work.model.hidden + 2 * (work.share.q_width + work.share.kv_width) + 3 * work.share.mlp_width
    return elements * ITEM_BYTES[work.precision]


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
