"""One rank of a training job: its part of the model, the data, the optimizer, and the step that joins them.

step:    the next global_batch samples of the data's order, this replica's share of them, in microbatches
         ─▶ Stage runs the Action list ─▶ one small all-reduce over all ranks (norm, loss, flags) ─▶ clip ─▶ AdamW
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rayplane.comm.mesh import Mesh
from rayplane.errors import DataError
from rayplane.model.weights import open_weights
from rayplane.spec.job import TrainSection
from rayplane.spec.layout import split
from rayplane.spec.model import ModelSpec
from rayplane.spec.passes import build, build_forward
from rayplane.spec.report import StepReport
from rayplane.train.build import build_part
from rayplane.train.checkpoint import Store
from rayplane.train.data import Dataset, Ints
from rayplane.train.finite import raise_non_finite
from rayplane.train.microbatch import Microbatch
from rayplane.train.optim import Optimizer, clip_scale, learning_rate
from rayplane.train.share import Progress
from rayplane.train.stage import Stage

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the ranks agreed on in one step."""

    loss: float
    grad_norm: float
    lr: float
    drain: bool


class TrainRank:
    """Builds this rank's chunks with fresh weights; `resume` or `read_weights` may replace them."""

    def __init__(self, spec: ModelSpec, train: TrainSection, mesh: Mesh, dataset: Dataset):
        self.spec, self.mesh = spec, mesh
        self.progress = Progress(data=dataset.fingerprint)
        self._train, self._dataset = train, dataset
        layout, stage = mesh.layout, mesh.coord.pp
        part = build_part(spec, train, mesh)
        self.chunks, self.presence, self._gradients = part.chunks, part.presence, part.gradients
        self.weights = list(dict.fromkeys(w for chunk in self.chunks.values() for w in chunk.weights()))
        self.optimizer = Optimizer(list(self._gradients.values()), train.optimizer, mesh)
        self._stage = Stage(self.chunks, self._gradients, part.place, mesh, spec.hidden)
        self._sizes = layout.microbatch_sizes(train.global_batch, mesh.coord.dp)
        self._actions = build(layout, len(self._sizes)).ranks[stage]

    @property
    def _num_targets(self) -> int:
        """Targets of a step, whether they count or not."""
        return self._train.global_batch * self._train.data.seq_len

    def read_weights(self, path: Path) -> None:
        """Take the weights from a Hugging Face folder, a GGUF file or another job's checkpoint; only this rank's part is read."""
        source = open_weights(path, self.spec)
        for piece in self.optimizer.tensors():
            if piece.name.startswith("model/"):
                piece.data.copy_(source.read(piece.part.tensor.name, piece.part.chunk))
        self.optimizer.loaded(0)

    def start_save(self, checkpoints: Store) -> Future[Path]:
        """Begin to save what the steps so far have made; every rank calls it, and training may go on."""
        return checkpoints.start_save(self.progress, self.optimizer.tensors())

    def resume(self, checkpoints: Store, folder: Path) -> None:
        """Go on from a checkpoint, whatever layout wrote it, with the sample after the last one that it saw."""
        self.go_on(self.load(checkpoints, folder))

    def load(self, checkpoints: Store, folder: Path) -> Progress:
        """Fill this rank's state from a checkpoint; it counts once every rank has done so and calls `go_on`."""
        return checkpoints.load(folder, self.optimizer.tensors(), self._dataset.fingerprint)

    def go_on(self, progress: Progress) -> None:
        """Go on with the state that was loaded; every rank calls it, for ranks gather from each other what they use."""
        self.progress = progress
        self.optimizer.loaded(progress.step)

    def step(self, drain: bool) -> tuple[StepReport, bool]:
        """Train on the next global batch; returns the report and whether any rank was asked to drain."""
        clock = self.mesh.clock
        with clock.phase("data"):
            batch = self._batch()
        for gradients in self._gradients.values():
            gradients.zero()
        scale = 1.0 / self._num_targets
        outcome = Outcome(math.nan, math.nan, 0.0, False)

        def update(losses: Sequence[Tensor]) -> None:
            nonlocal outcome
            outcome = self._update(losses, batch, drain)

        self._stage.run(self._actions, batch, scale, update)
        self.progress = replace(self.progress, step=self.progress.step + 1, samples=self.progress.samples + self._train.global_batch)
        return self._report(outcome), outcome.drain

    def evaluate(self) -> float | None:
        """Mean loss per token of the held-out samples; None when nothing is held out. Every rank gets the same number."""
        count, layout = self._dataset.num_holdout, self.mesh.layout
        if not count:
            return None
        offset, size = split(count, layout.dp, self.mesh.coord.dp)
        micro = layout.micro_batch
        samples = [range(offset, offset + size)[i : i + micro] for i in range(0, size, micro)]
        batch = [self._microbatch(part, self._dataset.holdout, self._dataset.holdout_starts) for part in samples]
        own = len(batch)
        if layout.zero > 2:
            # Replicas gather weights together: whoever has fewer samples computes one for the others' sake.
            idle = self._microbatch(range(1), self._dataset.holdout, self._dataset.holdout_starts)
            batch += [idle] * (-(-split(count, layout.dp, 0)[1] // micro) - own)
        losses: list[Tensor] = []
        if batch:
            actions = build_forward(layout, len(batch)).ranks[self.mesh.coord.pp]
            with torch.no_grad():
                losses = self._stage.run(actions, batch, 1.0 / (count * self._train.data.seq_len), _no_step)[:own]
        mine = torch.stack([self._sum_losses(losses), *self._numbers(self._counted(batch[:own]))])
        loss, counted = self.mesh.world.all_reduce(mine).tolist()
        return float(loss * _correction(count * self._train.data.seq_len, counted, "the held-out samples"))

    def _batch(self) -> list[Microbatch]:
        """This replica's microbatches of the next step."""
        offset, _ = split(self._train.global_batch, self.mesh.layout.dp, self.mesh.coord.dp)
        first = self.progress.samples + offset
        batch = []
        for size in self._sizes:
            batch.append(self._microbatch(range(first, first + size), self._dataset.sample, self._dataset.starts))
            first += size
        return batch

    def _microbatch(self, samples: range, tokens: Callable[[int], Ints], starts: Callable[[int], Ints]) -> Microbatch:
        apart = [starts(k) for k in samples] if self._train.data.document_mask else None
        return Microbatch.of(np.stack([tokens(k) for k in samples]), apart, self.mesh.cp, self.mesh.device)

    def _counted(self, batch: Sequence[Microbatch]) -> int:
        """This rank's share of the targets that count: all tp ranks and stages have the same ones, and the first counts."""
        return 0 if self.mesh.coord.tp or self.mesh.coord.pp else sum(m.counted for m in batch)

    def _numbers(self, *values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.mesh.device)

    def _update(self, losses: Sequence[Tensor], batch: Sequence[Microbatch], drain: bool) -> Outcome:
        """Agree on norm and loss over all ranks, then step. Nothing is changed when a number is not finite.

        The backward divided by all targets of the global batch; only here it is known how many of them count, on all ranks.
        """
        with self.mesh.clock.phase("optimizer"):
            square = self.optimizer.square_norm()
        known = self._numbers(self._counted(batch), drain)
        mine = torch.stack([square.to(self.mesh.device), self._sum_losses(losses), *known])
        square, loss, counted, drains = self.mesh.world.all_reduce(mine).tolist()
        if not (math.isfinite(square) and math.isfinite(loss)):
            raise_non_finite(self.mesh, self.progress.step + 1, losses, self.optimizer.square_norm())
        correction = _correction(self._num_targets, counted, f"step {self.progress.step + 1}")
        norm = math.sqrt(square) * correction
        rate = learning_rate(self._train.optimizer, self.progress.step, self._train.steps)
        with self.mesh.clock.phase("optimizer"):
            self.optimizer.step(rate, clip_scale(norm, self._train.optimizer.clip) * correction)
        return Outcome(loss * correction, norm, rate, drains > 0)

    def _sum_losses(self, losses: Sequence[Tensor]) -> Tensor:
        """This rank's share of the global loss, in fp64: tp ranks of the last stage hold equal losses, and the first counts."""
        if not losses or self.mesh.coord.tp:
            return torch.zeros((), dtype=torch.float64, device=self.mesh.device)
        return torch.stack(list(losses)).double().sum()

    def _report(self, outcome: Outcome) -> StepReport:
        phases = self.mesh.clock.take()
        sent, coord = self.mesh.ledger.bytes_by_axis(), self.mesh.coord
        self.mesh.ledger.reset()
        return StepReport(
            rank=self.mesh.rank,
            replica=coord.dp,
            stage=coord.pp,
            step=self.progress.step,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            lr=outcome.lr,
            tokens=self._train.global_batch * self._train.data.seq_len,
            wall_s=sum(phases.values()),
            phases=phases,
            comm_bytes=sent,
            memory_bytes=_peak_memory_bytes(self.mesh.device),
        )


def _no_step(losses: Sequence[Tensor]) -> None:
    """A pass without backward has no optimizer step."""


def _correction(num_targets: int, counted: float, what: str) -> float:
    """What turns a mean over all targets, those that do not count being zeros, into the mean over those that count: 1 if all do."""
    if not counted:
        raise DataError(
            f"no token of {what} is followed by another one of its document, so there is nothing to learn; "
            "set train.data.document_mask: false, or give longer documents"
        )
    return num_targets / counted


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
