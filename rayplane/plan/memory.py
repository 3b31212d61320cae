"""Bytes on the fullest rank of each stage, and what they mean for the device.

           fp32   bf16   per
weights      4      2    parameter
gradients    4      4    parameter                       fp32 in both
optimizer    8     12    parameter                       two moments, and the fp32 master copy; zero 1 cuts them over dp x cp
activations  what a layer keeps for its backward, times the microbatches in flight, which are counted from the schedule (`held`)
logits       8     10    vocabulary row and token        of two slices, on the last chunk's stage
fixed        runtime, kernels, communicator buffers; and a share of all the rest lost to fragmentation

A layer keeps, per token of a rank, of width h (hidden), q, kv and f (feed-forward) on this rank; t is tp under sp, else 1:

recompute    none        2h/t + 2h + 3q + 3kv + 3f       inputs of two norms (which sp cuts) and their results; qkv, rotated q and k,
             selective   2h/t + 2h + 2q + 2kv + 3f       attention's output; gate, up and product (without a gate 2f)
             full        h/t                             and one layer's whole at a time
halves       W needs     4h + 2q + 2kv + 3f              inputs and output gradients of the four matrices

(Korthikanti et al., 2022, section 4, whose sp gathers again in backward and so cuts the norms' results as well.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.compute import ITEM_BYTES, Microbatch
from rayplane.plan.held import Held, most_bytes
from rayplane.plan.pipe import stages_of
from rayplane.plan.share import chunk_params
from rayplane.spec.layout import Layout

TIGHT = 0.9
"""Above this share of the device a layout is called tight."""
WEIGHT_BYTES = {"fp32": 4, "bf16": 2}
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = {"fp32": 8, "bf16": 12}
LOGIT_BYTES = {"fp32": 8, "bf16": 10}
SLICE_ELEMENTS = 1 << 22
"""So many logits exist at a time (`model.loss`; a test holds the two equal)."""


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


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes on the fullest tp rank that one microbatch takes, and what is there once."""

    layer: int
    half: int
    """Of a layer between the two halves of its backward."""
    residual: int
    activation: int
    workspace: int
    """The layer that is being computed again."""
    logits: int


def kept(work: Microbatch) -> Kept:
    """Of a microbatch."""
    layer = layer_bytes(work)
    workspace = 0 if work.recompute == "none" else layer_bytes(work.without_recompute) - layer
    elements = min(work.tokens * work.share.vocab_rows, max(SLICE_ELEMENTS, work.share.vocab_rows))
    logits = LOGIT_BYTES[work.precision] * elements
    return Kept(layer, half_bytes(work), work.residual_bytes, work.activation_bytes, workspace, logits)


def stage_memory(work: Microbatch, of: Kept, layout: Layout, held: Sequence[Sequence[Held]]) -> tuple[StageMemory, ...]:
    """Memory of every stage; `work` is one microbatch on the fullest tp rank, `held` what each stage holds at its fullest."""
    own: list[list[int]] = [[] for _ in range(layout.pp)]
    for chunk, stage in enumerate(stages_of(layout)):
        own[stage].append(chunk)
    last, known = layout.num_chunks - 1, dict[object, StageMemory]()
    out = []
    for chunks, moments in zip(own, held, strict=True):
        # Stages in the middle are often alike.
        alike = (tuple(layout.boundaries[c] for c in chunks), 0 in chunks, last in chunks, tuple(moments))
        if alike not in known:
            known[alike] = _stage(work, of, layout, chunks, moments)
        out.append(known[alike])
    return tuple(out)


def in_flight(layout: Layout, num_microbatches: int) -> list[list[Held]]:
    """What each stage holds at its fullest, or at least: under 1f1b and gpipe exact, else one microbatch of each of its chunks."""
    if layout.schedule == "gpipe":
        return [[(num_microbatches, 0)]] * layout.pp
    if layout.schedule == "1f1b":
        return [[(min(layout.pp - stage, num_microbatches), 0)] for stage in range(layout.pp)]
    return [[(1,) * layout.vpp + (0,) * layout.vpp]] * layout.pp


def layer_bytes(work: Microbatch) -> int:
    """What one layer keeps of a microbatch for its backward."""
    share, hidden = work.share, work.model.hidden
    if work.recompute == "full":
        return work.residual_bytes
    rotated = 0 if work.recompute == "selective" else share.q_width + share.kv_width
    elements = 2 * hidden + 2 * share.q_width + 2 * share.kv_width + rotated + (1 + work.up_matrices) * share.mlp_width
    # Over cp the ring keeps keys and values once more, and its result in fp32.
    ring = 2 * share.kv_width * ITEM_BYTES[work.precision] + 4 * share.q_width if work.cp > 1 and rotated else 0
    return 2 * work.residual_bytes + (elements * ITEM_BYTES[work.precision] + ring) * work.tokens


def half_bytes(work: Microbatch) -> int:
    """What one layer keeps between the two halves of its backward."""
    share = work.share
    elements = 4 * work.model.hidden + 2 * share.q_width + 2 * share.kv_width + (1 + work.up_matrices) * share.mlp_width
    return elements * work.tokens * ITEM_BYTES[work.precision]


def verdict(memory_bytes: int, device_bytes: int) -> str:
    """fits, tight or does not fit."""
    if memory_bytes > device_bytes:
        return "does not fit"
    return "tight" if memory_bytes > TIGHT * device_bytes else "fits"


def gigabytes(num_bytes: int) -> str:
    """In 10^9 bytes, as users see it."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e9:.3f} GB"


def _stage(work: Microbatch, of: Kept, layout: Layout, chunks: Sequence[int], moments: Sequence[Held]) -> StageMemory:
    precision, device = work.precision, work.device
    params = sum(chunk_params(work.share, layout, c) for c in chunks)
    weights, gradients = WEIGHT_BYTES[precision] * params, GRADIENT_BYTES * params
    optimizer = OPTIMIZER_BYTES[precision] * math.ceil(params / (layout.dp * layout.cp if layout.zero else 1))
    whole, half = zip(*(_chunk_bytes(of, layout, c) for c in chunks), strict=True)
    activations = most_bytes(moments, whole, half) + of.workspace
    logits = of.logits if layout.num_chunks - 1 in chunks else 0
    lost = round(device.fragmentation * (weights + gradients + optimizer + activations + logits))
    return StageMemory(weights, gradients, optimizer, activations, logits, device.fixed_bytes + lost)


def _chunk_bytes(of: Kept, layout: Layout, chunk: int) -> tuple[int, int]:
    """What a chunk keeps of a microbatch until its backward, and between the halves of that.

    Besides its layers: its output, on the last chunk the final norm's input and the gradient of the head's; the embedding's gradient.
    """
    layers, last = layout.boundaries[chunk], chunk == layout.num_chunks - 1
    return layers * of.layer + of.residual + last * of.activation, layers * of.half + (chunk == 0) * of.activation
