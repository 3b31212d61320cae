"""AdamW over a rank's weights: fp32 state whatever the weights' dtype, one norm for the whole model, one learning rate per step.

norm² = sum over ranks of the squares of what each rank *owns* (owned_of): cut, replicated and shared tensors count once
grads *= min(1, clip / norm)                                         (Pascanu et al., 2013, section 3.2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.parameter import Part, Weight
from rayplane.spec.job import OptimizerSection
from rayplane.spec.sharding import owned_of

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


class Optimizer:
    """Holds the fp32 master of each weight (the weight itself when it is fp32) and AdamW's moments."""

    def __init__(self, weights: Sequence[Weight], section: OptimizerSection, mesh: Mesh):
        self._weights = list(weights)
        self._masters = [w if w.dtype == torch.float32 else torch.nn.Parameter(w.detach().float()) for w in weights]
        groups = []
        for decay in (True, False):
            members = [m for w, m in zip(weights, self._masters, strict=True) if w.parts[0].tensor.decay is decay]
            if members:
                groups.append({"params": members, "weight_decay": section.weight_decay if decay else 0.0})
        self._adamw = torch.optim.AdamW(groups, lr=section.lr, betas=(section.beta1, section.beta2), eps=section.eps, fused=True)
        for master in self._masters:
            moments = {name: torch.zeros_like(master, memory_format=torch.contiguous_format) for name in STATES[1:]}
            self._adamw.state[master] = {"step": torch.zeros((), device=mesh.device), **moments}
        self._owned = _owned_grads(self._weights, mesh)

    def square_norm(self) -> Tensor:
        """Sum of squares of the gradients that this rank owns, a scalar in fp64."""
        norms = list(torch._foreach_norm(self._owned)) if self._owned else []
        return torch.stack(norms).double().square().sum() if norms else torch.zeros((), dtype=torch.float64)

    def step(self, lr: float, scale: float) -> None:
        """One AdamW step with the gradients times `scale`."""
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = weight.main_grad
        if scale != 1.0:
            torch._foreach_mul_([w.main_grad for w in self._weights], scale)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = None
            if master is not weight:
                weight.data.copy_(master.data)

    def tensors(self) -> Iterator[tuple[str, Part, Tensor]]:
        """(state name, part, this rank's piece of it) for all that a checkpoint holds."""
        for weight, master in zip(self._weights, self._masters, strict=True):
            moments = self._adamw.state[master]
            for name, storage in zip(STATES, (master.data, moments["exp_avg"], moments["exp_avg_sq"]), strict=True):
                for part, view in weight.views(storage):
                    yield name, part, view

    def loaded(self, steps_done: int) -> None:
        """Call after writing into `tensors`: sets the step count and brings the weights in line with their masters."""
        for weight, master in zip(self._weights, self._masters, strict=True):
            self._adamw.state[master]["step"].fill_(float(steps_done))
            if master is not weight:
                weight.data.copy_(master.data)


def clip_scale(norm: float, clip: float) -> float:
    """What gradients are multiplied with; 1 when clipping is off or the norm is small enough."""
    return clip / norm if clip and norm > clip else 1.0


def _owned_grads(weights: Sequence[Weight], mesh: Mesh) -> list[Tensor]:
    """Views of the gradients that count for the norm; replicas hold equal ones, and the first counts."""
    if mesh.coord.dp:
        return []
    out = []
    for weight in weights:
        for part, grad in weight.views(weight.main_grad):
            owned = owned_of(part.tensor, mesh.layout, mesh.coord)
            if owned is not None:
                out.append(grad[owned.within(part.chunk).slices])
    return out
