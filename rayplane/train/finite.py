"""Where a number that is not finite came from: every rank says what it saw, and all raise the same error.

loss of some microbatch  ─▶ the first rank that has one, and its microbatch
else a gradient          ─▶ the first rank that has one
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rayplane.comm.mesh import Mesh
from rayplane.errors import NonFiniteError

Tensor = torch.Tensor


def raise_non_finite(mesh: Mesh, step: int, losses: Sequence[Tensor], square_norm: Tensor) -> None:
    """Find the first rank and microbatch with a loss that is not finite, else the first rank with such a gradient; every rank calls it.

    Raises NonFiniteError.
    """
    bad = next((m for m, loss in enumerate(losses) if not math.isfinite(loss.item())), -1)
    gradient = not math.isfinite(square_norm.item())
    rows = mesh.world.all_gather(torch.tensor([[bad, int(gradient)]], device=mesh.device)).tolist()
    for rank, (microbatch, _) in enumerate(rows):
        if microbatch >= 0:
            raise NonFiniteError(
                f"the loss is not finite at step {step}, rank {rank}, microbatch {microbatch}; "
                "lower optimizer.lr, set optimizer.clip, or look at the samples of that step"
            )
    rank = next((r for r, (_, g) in enumerate(rows) if g), 0)
    raise NonFiniteError(
        f"the gradient is not finite at step {step} (first on rank {rank}) although the loss is; "
        "lower optimizer.lr or set optimizer.clip"
    )
