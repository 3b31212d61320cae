"""The process of one training rank: `python -m rayplane.train.worker --fd N`, started and watched by its owner.

ready ─▶ (store) ─▶ join ─▶ mesh, model, data ─▶ started ─▶ step … step ─▶ done
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from rayplane.comm.mesh import Mesh
from rayplane.errors import DataError
from rayplane.rank.life import live, mesh_of
from rayplane.spec.job import TrainJob
from rayplane.spec.source import load_model, model_folder
from rayplane.spec.tokenizer import data_section
from rayplane.telemetry.channel import Channel, Message
from rayplane.train.checkpoint import Store
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank
from rayplane.train.trace import Tracer


def _train(channel: Channel, join: Message, store: dist.Store | None) -> None:
    config = join["config"]
    job = TrainJob.model_validate(config["job"], strict=False)
    torch.set_flush_denormal(True)  # after the job is read: a tiny number in it would no longer be more than zero
    mesh = mesh_of(join, store, job.limits.step_timeout_s)
    rank = _build(job, mesh, Path(config["resume"]) if config["resume"] else None)
    before = rank.evaluate() if rank.progress.step == 0 else None
    channel.send({"type": "started", "step": rank.progress.step, "holdout_loss": before, "params": rank.spec.num_params})
    drained = _steps(channel, rank, job)
    after = None if drained else rank.evaluate()
    channel.send({"type": "done", "step": rank.progress.step, "drained": drained, "holdout_loss": after})
    mesh.close()


def _build(job: TrainJob, mesh: Mesh, resume: Path | None) -> TrainRank:
    """A rank with its initial weights, those of a published model, or those of a checkpoint."""
    spec = load_model(job.model)
    dataset = open_dataset(data_section(job), Path(), Path(job.train.checkpoint.dir) / "data", spec.vocab)
    rank = TrainRank(spec, job.train, mesh, dataset)
    _check_same_data(dataset.fingerprint, mesh)
    if mesh.rank == 0:
        _checkpoints(job, rank).clean()
    if resume is not None:
        rank.resume(_checkpoints(job, rank), resume)
    elif folder := model_folder(job.model):
        rank.read_weights(folder)
    return rank


def _checkpoints(job: TrainJob, rank: TrainRank) -> Store:
    section = job.train.checkpoint
    return Store(Path(section.dir), section.keep, rank.spec, rank.mesh)


def _check_same_data(fingerprint: str, mesh: Mesh) -> None:
    """Hosts with different files would train on different data without a sign of it."""
    mine = torch.frombuffer(bytearray.fromhex(fingerprint), dtype=torch.uint8)[None].to(mesh.device)
    rows = mesh.world.all_gather(mine)
    if differing := [rank for rank, row in enumerate(rows) if not torch.equal(row, rows[0])]:
        raise DataError(f"train.data: ranks {differing} see other data than rank 0; every host must have the same files")


def _steps(channel: Channel, rank: TrainRank, job: TrainJob) -> bool:
    """Train to the end, saving as the job asks and after the last step; returns whether the owner had the job drained before."""
    saves = _Saves(channel, rank, _checkpoints(job, rank))
    tracer = Tracer(job.train.trace, rank.mesh, Path(job.train.checkpoint.dir))
    total, drain = job.train.steps, False
    rank.mesh.clock.start()
    while rank.progress.step < total and not drain:
        tracer.before(rank.progress.step + 1)
        report, drain = rank.step(channel.draining)
        channel.send({"type": "step", **asdict(report)})
        tracer.after(report.step)
        saves.announce(wait=False)
        if drain or report.step % job.train.checkpoint.every == 0 or report.step == total:
            saves.announce(wait=True)
            saves.start()
            rank.mesh.clock.start()
    saves.announce(wait=True)
    return rank.progress.step < total


class _Saves:
    """The save that is under way, if any; rank 0 tells the owner when it is complete."""

    def __init__(self, channel: Channel, rank: TrainRank, checkpoints: Store):
        self._channel, self._rank, self._checkpoints = channel, rank, checkpoints
        self._step = 0
        self._saving: Future[Path] | None = None

    def start(self) -> None:
        """Begin to save the state as it is."""
        self._step, self._saving = self._rank.progress.step, self._rank.start_save(self._checkpoints)

    def announce(self, wait: bool) -> None:
        """Raise what went wrong with the save under way, or tell that it is done, if it is or `wait` is set."""
        if self._saving is not None and (wait or self._saving.done()):
            path, self._saving = self._saving.result(), None
            if self._rank.mesh.rank == 0:
                self._channel.send({"type": "checkpoint", "step": self._step, "path": str(path)})


if __name__ == "__main__":
    live(_train)
