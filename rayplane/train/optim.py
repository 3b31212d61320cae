"""AdamW over a rank's weights: fp32 state whatever the weights' dtype, one norm for the whole model, one learning rate per step.

norm² = sum over ranks of the squares of what each rank *owns* (owned_of): cut, replicated and shared tensors count once
grads *= min(1, clip / norm)                                         (Pascanu et al., 2013, section 3.2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch.optim.adamw import adamw

from rayplane.comm.mesh import Mesh
from rayplane.spec.job import OptimizerSection
from rayplane.spec.sharding import owned_of
from rayplane.train.gradients import Gradients
from rayplane.train.offload import Offload
from rayplane.train.state import STATES, Piece, Shard, shards_of

Tensor = torch.Tensor


def learning_rate(section: OptimizerSection, step: int, steps: int) -> float:
    """Rate of step `step` (from 0) of `steps`: linear warm-up to `lr`, then down to `min_lr` at the last step."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    if section.schedule == "constant":
        return section.lr
    progress = (step - section.warmup_steps) / max(1, steps - 1 - section.warmup_steps)
    share = 1.0 - progress if section.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.min_lr + (section.lr - section.min_lr) * share


class Optimizer:
    """Updates the rows that the buckets of each chunk assign to this rank: all of them, or under ZeRO its share."""

    def __init__(self, gradients: Sequence[Gradients], section: OptimizerSection, mesh: Mesh):
        self._gradients, self._section, self._steps = gradients, section, 0
        self._shards = [shard for g in gradients for bucket in g.buckets for shard in shards_of(bucket, section.offload)]
        self._owned = [grad for shard in self._shards for grad in _owned_grads(shard, mesh)]
        self._offload = Offload(self._shards, mesh.device) if section.offload else None

    def square_norm(self) -> Tensor:
        """Sum of squares of the gradients that this rank owns, a scalar in fp64."""
        norms = list(torch._foreach_norm(self._owned)) if self._owned else []
        return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def step(self, lr: float, scale: float) -> None:
        """One AdamW step with the gradients times `scale`; the weights are whole once `Gradients.whole` has returned."""
        if self._offload is None:
            self._apply(self._shards, [s.grad for s in self._shards], lr, scale)
            self._write_back()
        else:
            for load, grads in self._offload.loads():
                self._apply(load, grads, lr, scale)
        self._steps += 1
        self._spread()

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
        self._spread()

    def _apply(self, shards: Sequence[Shard], grads: Sequence[Tensor], lr: float, scale: float) -> None:
        """AdamW where the state is, with these gradients, which are there too."""
        for decay in (True, False):
            chosen = [(s.states, grad) for s, grad in zip(shards, grads, strict=True) if s.decay is decay]
            if not chosen:
                continue
            device = chosen[0][1].device
            masters, averages, squares = ([states[i] for states, _ in chosen] for i in range(len(STATES)))
            # The functional form: the class imports a compiler that a rank does not need, a second at every start.
            adamw(
                masters,
                [grad for _, grad in chosen],
                averages,
                squares,
                [],
                [torch.tensor(float(self._steps), device=device) for _ in chosen],
                fused=True,
                grad_scale=None if scale == 1.0 else torch.tensor(1.0 / scale, device=device),
                amsgrad=False,
                beta1=self._section.beta1,
                beta2=self._section.beta2,
                lr=lr,
                weight_decay=self._section.weight_decay if decay else 0.0,
                eps=self._section.eps,
                maximize=False,
            )

    def _write_back(self) -> None:
        for shard in self._shards:
            shard.write_back()

    def _spread(self) -> None:
        for gradients in self._gradients:
            gradients.spread()


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
