"""Bytes on the fullest rank of each stage, and what they mean for the device.

           fp32   bf16   per
weights      4      2    parameter                       what zero leaves of them is in `states`
gradients    4      4    parameter                       fp32 in both
optimizer    8     12    parameter                       two moments, and the fp32 master copy
activations  what a layer keeps for its backward (`activations`), times the microbatches in flight, counted from the schedule (`held`)
logits       8     10    vocabulary row and token        of two slices, on the last chunk's stage
fixed        runtime, kernels, communicator buffers; and a share of all the rest lost to fragmentation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.plan.step.activations import Kept
from rayplane.plan.step.compute import Microbatch
from rayplane.plan.step.held import Held, Moments, most_bytes, most_of_stages
from rayplane.plan.step.pipe import chunks_of_stages, recomputed
from rayplane.plan.step.states import States, of_parameter, states
from rayplane.spec.layout import Layout

TIGHT = 0.9
"""Above this share of the device a layout is called tight."""


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


def stage_memory(work: Microbatch, of: Kept, layout: Layout, held: Sequence[Sequence[Held] | Moments]) -> tuple[StageMemory, ...]:
    """Memory of every stage; `work` is one microbatch on the fullest tp rank, `held` what each stage holds at its fullest."""
    common, in_flight_bytes = _common_of_stages(work, of, layout), dict[tuple[int, int], StageMemory]()
    out = []
    for stage, moments in zip(common, held, strict=True):
        most = most_bytes(moments, stage.whole, stage.half)
        if (id(stage), most) not in in_flight_bytes:
            in_flight_bytes[id(stage), most] = _stage(work, stage, most)
        out.append(in_flight_bytes[id(stage), most])
    return tuple(out)


def fullest(work: Microbatch, of: Kept, layout: Layout, held: Sequence[Sequence[Held] | Moments], stages: slice) -> StageMemory:
    """The largest of some stages, without making the others."""
    alike = dict[int, tuple[_Common, list[Sequence[Held] | Moments]]]()
    for stage, moments in zip(_common_of_stages(work, of, layout)[stages], held[stages], strict=True):
        alike.setdefault(id(stage), (stage, []))[1].append(moments)
    sizes = ((stage, most_of_stages(moments, stage.whole, stage.half)) for stage, moments in alike.values())
    return max((_stage(work, stage, in_flight_bytes) for stage, in_flight_bytes in sizes), key=lambda s: s.total)


def _common_of_stages(work: Microbatch, of: Kept, layout: Layout) -> list[_Common]:
    """By stage; those in the middle are often alike, and then the same."""
    last, cut, known = layout.num_chunks - 1, layout.boundaries, dict[tuple[int, ...], _Common]()
    out = []
    for chunks in chunks_of_stages(layout):
        alike = (chunks[0] == 0, chunks[-1] == last, *[cut[c] for c in chunks])
        stage = known.get(alike)
        if stage is None:
            stage = known[alike] = _common(work, of, layout, chunks)
        out.append(stage)
    return out


def in_flight(layout: Layout, num_microbatches: int) -> list[list[Held]]:
    """What each stage holds at its fullest, or at least: under 1f1b and gpipe exact, else what is there before the first backward."""
    stages, m = layout.pp, num_microbatches
    if layout.schedule == "gpipe":
        return [[(m, 0)]] * stages
    if layout.schedule in ("1f1b", "zb-h1"):
        return [[(min(stages - stage, m), 0)] for stage in range(stages)]
    if layout.schedule == "interleaved" and m >= 2 * stages:
        return [[_before_backward(stages, layout.vpp, stage)] for stage in range(stages)]
    if layout.schedule == "zbv" and m >= 2 * stages:
        return [[(2 * stages - stage - 1, stage + 1, 0, 0)] for stage in range(stages)]
    return [[(1,) * layout.vpp + (0,) * layout.vpp]] * stages


def _before_backward(num_stages: int, vpp: int, stage: int) -> Held:
    """Forwards of each chunk under interleaving, which come a stage's worth of microbatches at a time."""
    rounds, rest = divmod(2 * (num_stages - stage - 1) + (vpp - 1) * num_stages + 1, num_stages)
    whole = [num_stages * (rounds // vpp + (chunk < rounds % vpp)) for chunk in range(vpp)]
    whole[rounds % vpp] += rest
    return (*whole, *[0] * vpp)


def verdict(memory_bytes: int, device_bytes: int) -> str:
    """fits, tight or does not fit."""
    if memory_bytes > device_bytes:
        return "does not fit"
    return "tight" if memory_bytes > TIGHT * device_bytes else "fits"


def gigabytes(num_bytes: int) -> str:
    """In 10^9 bytes, as users see it."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e9:.3f} GB"


@dataclass(frozen=True, slots=True)
class _Common:
    """Of a stage, whatever it holds in flight: its states, what its chunks keep of a microbatch, and what is there once."""

    held: States
    whole: tuple[int, ...]
    half: tuple[int, ...]
    workspace: int
    logits: int


def _common(work: Microbatch, of: Kept, layout: Layout, chunks: Sequence[int]) -> _Common:
    each = of_parameter(work.precision, work.offload, work.device.is_host, work.practice.gradient_bytes)
    held = states(work.share, layout, chunks, each)
    whole, half = zip(*(_chunk_bytes(of, layout, c) for c in chunks), strict=True)
    return _Common(held, whole, half, of.workspace, of.logits if layout.num_chunks - 1 in chunks else 0)


def _stage(work: Microbatch, of: _Common, in_flight_bytes: int) -> StageMemory:
    activations = in_flight_bytes + of.workspace
    used = of.held.weights + of.held.gradients + of.held.optimizer + activations + of.logits
    fixed = work.device.fixed_bytes + round(work.device.fragmentation * used)
    return StageMemory(of.held.weights, of.held.gradients, of.held.optimizer, activations, of.logits, fixed)


def _chunk_bytes(of: Kept, layout: Layout, chunk: int) -> tuple[int, int]:
    """What a chunk keeps of a microbatch until its backward, and between the halves of that.

    Besides its layers: its output, on the last chunk the final norm's input and the gradient of the head's; the embedding's gradient.
    """
    layers, last = layout.boundaries[chunk], chunk == layout.num_chunks - 1
    again = recomputed(layout, layers)
    return (layers - again) * of.layer + again * of.again + of.residual + last * of.activation, layers * of.half + (
        chunk == 0
    ) * of.activation
