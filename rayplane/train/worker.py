"""The process of one training rank: `python -m rayplane.train.worker --fd N`, started and watched by its owner.

ready ─▶ (store) ─▶ join ─▶ mesh, model, data ─▶ started ─▶ step … step ─▶ done
                     ▲────────────── parked ◀── failed or recalled, wherever it was
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from rayplane.comm.mesh import Mesh
from rayplane.errors import DataError
from rayplane.rank.life import in_mesh, live, mesh_of
from rayplane.spec.job import TrainJob
from rayplane.spec.source import load_model, model_folder
from rayplane.spec.tokenizer import data_section
from rayplane.telemetry.channel import Channel, Message, Recalled
from rayplane.train.carried import NO_TOKENIZER, Carried, carried_tokenizer
from rayplane.train.checkpoint import Store
from rayplane.train.data import open_dataset
from rayplane.train.memory import Memory
from rayplane.train.ram_folder import RamFolder, remove_orphans
from rayplane.train.rank import TrainRank
from rayplane.train.recover import recover
from rayplane.train.saves import Saves
from rayplane.train.trace import Tracer


def _train(channel: Channel, join: Message, store: dist.Store | None) -> None:
    config = join["config"]
    # Not while the job is read: a tiny number in it would no longer be more than zero.
    torch.set_flush_denormal(False)
    job = TrainJob.model_validate(config["job"], strict=False)
    torch.set_flush_denormal(True)
    with closing(mesh_of(join, store, job.limits.step_timeout_s)) as mesh, ExitStack() as threads, in_mesh(mesh, channel):
        rank = _build(job, mesh)
        memory = _memory(job, rank, config.get("memory"), threads)
        for warning in _begin(job, rank, memory, Path(config["resume"]) if config["resume"] else None):
            channel.send({"type": "warning", "message": warning})
        before = rank.evaluate() if rank.progress.step == 0 else None
        channel.send({"type": "started", "step": rank.progress.step, "holdout_loss": before, "params": rank.spec.num_params})
        saves = threads.enter_context(closing(_saves(channel, rank, job, memory)))
        drained = _steps(channel, rank, job, saves)
        after = None if drained else rank.evaluate()
        channel.send({"type": "done", "step": rank.progress.step, "drained": drained, "holdout_loss": after})


def _build(job: TrainJob, mesh: Mesh) -> TrainRank:
    """A rank with its initial weights."""
    spec = load_model(job.model)
    dataset = open_dataset(data_section(job), Path(), Path(job.train.checkpoint.dir) / "data", spec.vocab)
    rank = TrainRank(spec, job.train, mesh, dataset)
    _check_same_data(dataset.fingerprint, mesh)
    if mesh.rank == 0:
        _checkpoints(job, rank).clean()
    return rank


def _memory(job: TrainJob, rank: TrainRank, given: Mapping[str, str] | None, threads: ExitStack) -> Memory | None:
    """The copies in the hosts' memory, where the job wants them; `given`: its folder there, and the lock that its driver holds."""
    remove_orphans(Path(job.train.checkpoint.memory_dir))
    if not given:
        return None
    folder = threads.enter_context(closing(RamFolder.open(Path(given["folder"]), Path(given["lock"]))))
    return Memory.open(folder, rank.spec, rank.mesh, rank.optimizer.tensors())


def _begin(job: TrainJob, rank: TrainRank, memory: Memory | None, resume: Path | None) -> list[str]:
    """Take the newest state that is whole, else the weights of a published model; what the first rank has to say about it."""
    said = recover(rank, _checkpoints(job, rank), memory, resume)
    if rank.progress.step == 0 and (folder := model_folder(job.model)):
        rank.read_weights(folder)
    return said if rank.mesh.rank == 0 else []


def _checkpoints(job: TrainJob, rank: TrainRank, tokenizer: Carried = NO_TOKENIZER) -> Store:
    section = job.train.checkpoint
    return Store(Path(section.dir), section.keep, rank.spec, rank.mesh, tokenizer)


def _check_same_data(fingerprint: str, mesh: Mesh) -> None:
    """Hosts with different files would train on different data without a sign of it."""
    mine = torch.frombuffer(bytearray.fromhex(fingerprint), dtype=torch.uint8)[None].to(mesh.device)
    rows = mesh.world.all_gather(mine)
    if differing := [rank for rank, row in enumerate(rows) if not torch.equal(row, rows[0])]:
        raise DataError(f"train.data: ranks {differing} see other data than rank 0; every host must have the same files")


def _saves(channel: Channel, rank: TrainRank, job: TrainJob, memory: Memory | None) -> Saves:
    tokenizer = carried_tokenizer(job) if rank.mesh.rank == 0 else NO_TOKENIZER
    return Saves(channel, rank, job.train.checkpoint, _checkpoints(job, rank, tokenizer), memory)


def _steps(channel: Channel, rank: TrainRank, job: TrainJob, saves: Saves) -> bool:
    """Train to the end, saving as the job asks and after the last step; returns whether the owner had the job drained before."""
    tracer = Tracer(job.train.trace, rank.mesh, Path(job.train.checkpoint.dir))
    total, drain = job.train.steps, False
    rank.mesh.clock.start()
    while rank.progress.step < total and not drain:
        if channel.recalled:
            raise Recalled
        tracer.before(rank.progress.step + 1)
        report, drain = rank.step(channel.draining)
        channel.send({"type": "step", **asdict(report)})
        tracer.after(report.step)
        if saves.after(report.step, last=drain or report.step == total):
            rank.mesh.clock.start()
    saves.finish()
    return rank.progress.step < total


if __name__ == "__main__":
    live(_train, again=True)
