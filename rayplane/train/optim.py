"""AdamW over a rank's weights: fp32 state whatever the weights' dtype, one norm for the whole model, one learning rate per step.

norm² = sum over ranks of the squares of what each rank *owns* (owned_of): cut, replicated and shared tensors count once
grads *= min(1, clip / norm)                                         (Pascanu et al., 2013, section 3.2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.optim.adamw import adamw

from rayplane.comm.mesh import Mesh
from rayplane.model.parameter import Part
from rayplane.spec.job import OptimizerSection
from rayplane.spec.sharding import owned_of
from rayplane.train.flat import Bucket, Rows
from rayplane.train.gradients import Gradients

Tensor = torch.Tensor
STATES = ("model", "exp_avg", "exp_avg_sq")
"""What a checkpoint holds of each tensor: fp32 weights, and AdamW's two moments."""


def learning_rate(section: OptimizerSection, step: int, steps: int) -> float:
    """Rate of step `step` (from 0) of `steps`: linear warm-up to `lr`, then down to `min_lr` at the last step."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    if section.schedule == "constant":
        return section.lr
    progress = (step - section.warmup_steps) / max(1, steps - 1 - section.warmup_steps)
    share = 1.0 - progress if section.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.min_lr + (section.lr - section.min_lr) * share


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of one global tensor of a checkpoint, as one rank holds it. `name` is STATE/TENSOR."""

    name: str
    part: Part
    data: Tensor
    copy: int
    num_copies: int
    """Which of how many ranks that hold it alike this is."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows of a weight whose state this rank holds; their fp32 master is the weight's own rows when that is fp32."""

    rows: Rows
    states: tuple[Tensor, Tensor, Tensor]
    """In the order of STATES, each shaped like the rows."""
    copy: int
    num_copies: int
    """Which of how many ranks that hold this state alike this is."""

    @property
    def grad(self) -> Tensor:
        """The rows' gradient."""
        return self.rows.grad

    @property
    def decay(self) -> bool:
        """Whether weight decay applies."""
        return self.rows.weight.parts[0].tensor.decay

    def pieces(self, storage: Tensor) -> Iterator[tuple[Part, Tensor]]:
        """The boxes of global tensors in a tensor shaped like these rows."""
        first, last = self.rows.first, self.rows.last
        for part in self.rows.weight.parts:
            if (inside := part.rows(first, last)) is not None:
                yield inside, storage[inside.start - first : inside.stop - first]

    def write_back(self) -> None:
        """Bring the weight in line with its master."""
        if self.rows.param.dtype != torch.float32:
            self.rows.param.copy_(self.states[0])


class Optimizer:
    """Updates the rows that the buckets of each chunk assign to this rank: all of them, or under ZeRO its share."""

    def __init__(self, gradients: Sequence[Gradients], section: OptimizerSection, mesh: Mesh):
        self._gradients, self._section, self._steps = gradients, section, 0
        self._shards = [_shard(rows, bucket) for g in gradients for bucket in g.buckets for rows in bucket.rows()]
        self._owned = [grad for shard in self._shards for grad in _owned_grads(shard, mesh)]
        self._device = mesh.device

    def square_norm(self) -> Tensor:
        """Sum of squares of the gradients that this rank owns, a scalar in fp64."""
        norms = list(torch._foreach_norm(self._owned)) if self._owned else []
        return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def step(self, lr: float, scale: float) -> None:
        """One AdamW step with the gradients times `scale`; the weights are whole once `Gradients.whole` has returned."""
        for decay in (True, False):
            shards = [s for s in self._shards if s.decay is decay]
            masters, first, second = ([s.states[i] for s in shards] for i in range(len(STATES)))
            # The functional form: the class imports a compiler that a rank does not need, a second at every start.
            adamw(
                masters,
                [s.grad for s in shards],
                first,
                second,
                [],
                [torch.tensor(float(self._steps), device=self._device) for _ in shards],
                fused=True,
                grad_scale=None if scale == 1.0 else torch.tensor(1.0 / scale, device=self._device),
                amsgrad=False,
                beta1=self._section.beta1,
                beta2=self._section.beta2,
                lr=lr,
                weight_decay=self._section.weight_decay if decay else 0.0,
                eps=self._section.eps,
                maximize=False,
            )
        self._steps += 1
        self._write_back()

    def tensors(self) -> Iterator[Piece]:
        """This rank's pieces of all that a checkpoint holds."""
        for shard in self._shards:
            for name, storage in zip(STATES, shard.states, strict=True):
                for part, view in shard.pieces(storage):
                    yield Piece(f"{name}/{part.tensor.name}", part, view, shard.copy, shard.num_copies)

    def gradients(self) -> Iterator[Piece]:
        """This rank's pieces of the last step's gradients, whole where they are given (after the reduction, before the next step)."""
        for shard in self._shards:
            for part, view in shard.pieces(shard.grad):
                yield Piece(part.tensor.name, part, view, shard.copy, shard.num_copies)

    def loaded(self, steps_done: int) -> None:
        """Call after writing into `tensors`: sets the step count and brings the weights in line with their masters."""
        self._steps = steps_done
        self._write_back()

    def _write_back(self) -> None:
        for shard in self._shards:
            shard.write_back()
        for gradients in self._gradients:
            gradients.spread()


def _shard(rows: Rows, bucket: Bucket) -> Shard:
    master = rows.param.float()
    return Shard(rows, (master, torch.zeros_like(master), torch.zeros_like(master)), bucket.copy, bucket.num_copies)


def clip_scale(norm: float, clip: float) -> float:
    """What gradients are multiplied with; 1 when clipping is off or the norm is small enough."""
    return clip / norm if clip and norm > clip else 1.0


def _owned_grads(shard: Shard, mesh: Mesh) -> Iterator[Tensor]:
    """Views of the gradients that count for the norm: what this rank owns of the rows that it updates.

    Ranks that update the same rows hold equal gradients, and the first counts.
    """
    if shard.copy:
        return
    for part, view in shard.pieces(shard.grad):
        owned = owned_of(part.tensor, mesh.layout, mesh.coord)
        common = part.chunk.overlap(owned) if owned is not None else None
        if common is not None:
            yield view[common.within(part.chunk).slices]
