"""Seconds of one kernel on a device: a matrix product, attention, or whatever passes through memory.

product      t0 + 2 · rows · columns · tokens / (efficiency · peak)
flash        4 · keys · width · tokens / (share of peak at S · peak)        backward 2.5 times the FLOPs at 0.85 of the rate
unfused      two products over all S keys, and the scores' ways through memory
memory       bytes / (0.78 · memory bandwidth)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rayplane.plan.machine.catalog import DeviceKind

MEMORY_EFFICIENCY = 0.78
"""Share of the memory bandwidth that element-wise kernels and the optimizer reach."""
FLASH_BACKWARD = 2.5 / 0.85
"""Backward over forward time of flash attention: it computes the scores again (Dao et al., FlashAttention, section 3.1)."""
SCORE_BYTES = {"unfused": (5, 9), "eager": (14, 20)}
"""Read and written per score without flash attention, forward and backward: products write and read all, softmax those that the mask
leaves; single operations scale, mask, and convert to fp32 and back besides."""
DROPOUT_BYTES = (5, 7)
"""Of scores in bf16 and their mask."""
TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.85), (64, 64, 0.65))
"""Rows and columns of a tile of the result, and the share of the rate that its reuse of operands allows."""
Shape = tuple[float, float, float]
"""(m, n, k)."""
THIN_PRODUCT = 0.88
"""Share of a large product's rate that one with a head's width inside reaches."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention on a rank: tokens, width of the queries, the heads in it, and how many keys a token sees or could see."""

    tokens: int
    width: int
    heads: float
    mean_keys: float
    seq_len: int


def product_s(device: DeviceKind, precision: str, shape: Shape) -> float:
    """A matrix product [m, k] x [k, n], cut into tiles that the device's cores compute in waves; the best of several tile sizes."""
    m, n, k = shape
    rate = device.gemm_efficiency * device.peak_flops[precision]
    if not device.cores:
        return device.gemm_t0_us * 1e-6 + 2.0 * m * n * k / rate
    best = min(
        math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / device.cores) * rows * columns / share
        for rows, columns, share in TILES
    )
    return device.gemm_t0_us * 1e-6 + 2.0 * best * k * device.cores / rate


def memory_s(device: DeviceKind, num_bytes: float) -> float:
    """Bytes read and written."""
    return num_bytes / (MEMORY_EFFICIENCY * device.hbm_gbytes_s * 1e9)


def attention_s(device: DeviceKind, precision: str, kernel: str, dropout: bool, of: Attention) -> tuple[float, float]:
    """Forward and backward of scores and their product with the values."""
    if kernel in SCORE_BYTES:
        product = 4.0 * of.seq_len * of.width * of.tokens / (THIN_PRODUCT * device.gemm_efficiency * device.peak_flops[precision])
        scores = of.heads * of.seq_len * of.tokens
        ways = [a + dropout * b for a, b in zip(SCORE_BYTES[kernel], DROPOUT_BYTES, strict=True)]
        return product + memory_s(device, ways[0] * scores), 2 * product + memory_s(device, ways[1] * scores)
    table = device.attention.get(kernel, device.attention["flash"])
    forward = 4.0 * of.mean_keys * of.width * of.tokens / (share_at(table, of.seq_len) * device.peak_flops[precision])
    return forward, FLASH_BACKWARD * device.ratios.attention_backward * forward


def share_at(table: Sequence[tuple[int, float]], seq_len: int) -> float:
    """Share of peak at a sequence length: between the table's points by the logarithm, beyond them the nearest."""
    if seq_len <= table[0][0]:
        return table[0][1]
    for (low, at_low), (high, at_high) in pairwise(table):
        if seq_len <= high:
            return at_low + (at_high - at_low) * math.log(seq_len / low) / math.log(high / low)
    return table[-1][1]
