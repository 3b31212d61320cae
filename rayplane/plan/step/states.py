"""Bytes of weights, gradients and optimizer state on the fullest rank of a stage: what zero cuts over `shard_size` ranks, and what not.

             weights                  gradients                   optimizer
    zero 0   all                      all                         all
    zero 1   all                      all                         its share
    zero 2   all                      its share, 3 buckets whole  its share
    zero 3   its share, 2 units whole its share, 3 buckets whole  its share

A unit is a layer, the embedding or the head: the one that works, and the next one, being gathered. Of the buckets two are being
reduced and one is being filled; a matrix is at least one bucket. What tp ranks hold in common stays whole, and so do weights and
gradients of an embedding that is tied across two chunks. With `offload` the optimizer's state is in the host's memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.step.share import Share, stage_params
from rayplane.spec.layout import Layout

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp8": 2, "fp4": 2}
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = {"fp32": 8, "bf16": 12, "fp8": 12, "fp4": 12}
"""Two moments, and under bf16 the master copy."""
MASTER_BYTES = 12
"""Offloaded, a master copy beside the moments whatever the precision."""
BUCKETS = 3
"""Whole gradients under zero 2 and 3 (`train.gradients`: two under way, and one)."""


@dataclass(frozen=True, slots=True)
class States:
    """Bytes on the device."""

    weights: int
    gradients: int
    optimizer: int


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters on the fullest rank of a stage, by what zero may do with them."""

    cut: int
    common: int
    spanning: int
    """Of the cut ones, those of an embedding that is tied across chunks."""

    def held(self, layout: Layout, from_zero: int) -> int:
        """How many a rank holds of what is cut from some zero on."""
        if layout.zero < from_zero:
            return self.cut + self.common
        stays = self.spanning if from_zero > 1 else 0
        return math.ceil((self.cut - stays) / layout.shard_size) + stays + self.common


def parameters(of: Share, layout: Layout, chunks: Sequence[int]) -> Parameters:
    """Of some chunks on one stage, in model order."""
    total, common = stage_params(of, layout, chunks)
    ends = layout.num_chunks > 1 and (chunks[0] == 0 or chunks[-1] == layout.num_chunks - 1)
    return Parameters(total - common, common, of.tied_params if ends else 0)


def states(of: Share, layout: Layout, chunks: Sequence[int], each: States) -> States:
    """Of the chunks of a stage, for the bytes that each parameter takes."""
    params = parameters(of, layout, chunks)
    first, last = 0 in chunks, layout.num_chunks - 1 in chunks
    layers = any(layout.boundaries[c] for c in chunks)
    weights, gradients = params.held(layout, 3), params.held(layout, 2)
    if layout.shard_size > 1:
        weights += _units(of, first, last, layers) if layout.zero > 2 else 0
        gradients += _buckets(of, first, last, layers) if layout.zero > 1 else 0
    return States(each.weights * weights, each.gradients * gradients, each.optimizer * params.held(layout, 1))


def of_parameter(precision: str, offload: bool = False, on_host: bool = False, gradient_bytes: int = GRADIENT_BYTES) -> States:
    """Of one parameter, offloaded to the host's memory, which may be the device's own."""
    away = MASTER_BYTES if on_host else 0
    return States(WEIGHT_BYTES[precision], gradient_bytes, away if offload else OPTIMIZER_BYTES[precision])


def _units(of: Share, first: bool, last: bool, layers: bool) -> int:
    """The two neighbours with most parameters."""
    layer = of.layer_params if layers else 0
    return layer + max(layer, of.embed_params * first, of.head_params * last)


def _buckets(of: Share, first: bool, last: bool, layers: bool) -> int:
    """The neighbours with most parameters, one matrix each."""
    matrices = sorted(of.stacked, reverse=True) if layers else [0] * BUCKETS
    end = max(of.embed_params * first, of.head_params * last)
    return max(sum(matrices[:BUCKETS]), end + sum(matrices[: BUCKETS - 1]))
