"""Bytes on the fullest rank of each stage, and what they mean for the device.

           fp32   bf16   per
weights      4      2    parameter
gradients    4      4    parameter                       fp32 in both
optimizer    8     12    parameter                       two moments, and the fp32 master copy
activations  what a layer keeps for its backward, times the microbatches in flight:   1f1b  min(pp - stage, m)     gpipe  m
logits       8      6    vocabulary row and token        logits and their gradient, on the last stage
fixed        runtime, kernels, communicator buffers; and a share of all the rest lost to fragmentation
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.plan.compute import ITEM_BYTES, Microbatch
from rayplane.plan.share import stage_params
from rayplane.spec.layout import Layout

TIGHT = 0.9
"""Above this share of the device a layout is called tight."""
WEIGHT_BYTES = {"fp32": 4, "bf16": 2}
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = {"fp32": 8, "bf16": 12}
LOGIT_BYTES = {"fp32": 8, "bf16": 6}


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Bytes by term on the fullest rank of a stage."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    fixed: int

    @property
    def total(self) -> int:
        """All terms."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.fixed

    def terms(self) -> dict[str, int]:
        """By name, in the order of the table above."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "logits": self.logits,
            "fixed": self.fixed,
        }


def stage_memory(work: Microbatch, layout: Layout, num_microbatches: int) -> tuple[StageMemory, ...]:
    """Memory of every stage; `work` is one microbatch on the fullest tp rank."""
    layer_bytes = layer_activation_bytes(work)
    return tuple(_stage(work, layout, stage, in_flight(layout, num_microbatches, stage), layer_bytes) for stage in range(layout.pp))


def in_flight(layout: Layout, num_microbatches: int, stage: int) -> int:
    """Microbatches whose activations a stage holds at its fullest."""
    return num_microbatches if layout.schedule == "gpipe" else min(layout.pp - stage, num_microbatches)


def layer_activation_bytes(work: Microbatch) -> int:
    """What one layer keeps of a microbatch for its backward.

    Inputs of the two norms and their results; q, k, v, then q and k after rope, and the attention's output; gate, up, SiLU and product.
    """
    share, hidden = work.share, work.model.hidden
    elements = 4 * hidden + 3 * share.q_width + 3 * share.kv_width + 4 * share.mlp_width
    return elements * work.tokens * ITEM_BYTES[work.precision]


def verdict(memory_bytes: int, device_bytes: int) -> str:
    """fits, tight or does not fit."""
    if memory_bytes > device_bytes:
        return "does not fit"
    return "tight" if memory_bytes > TIGHT * device_bytes else "fits"


def gigabytes(num_bytes: int) -> str:
    """In 10^9 bytes, as users see it."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e9:.3f} GB"


def _stage(work: Microbatch, layout: Layout, stage: int, held: int, layer_bytes: int) -> StageMemory:
    precision, device = work.precision, work.device
    params = stage_params(work.share, work.model.tied, layout.boundaries, stage)
    last = stage == layout.pp - 1
    weights, gradients, optimizer = WEIGHT_BYTES[precision] * params, GRADIENT_BYTES * params, OPTIMIZER_BYTES[precision] * params
    activations = held * (layout.boundaries[stage] * layer_bytes + (1 + last) * work.activation_bytes)
    logits = last * held * LOGIT_BYTES[precision] * work.tokens * work.share.vocab_rows
    lost = round(device.fragmentation * (weights + gradients + optimizer + activations + logits))
    return StageMemory(weights, gradients, optimizer, activations, logits, device.fixed_bytes + lost)
