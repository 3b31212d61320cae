"""The process of one training rank: `python -m rayplane.train.worker --fd N`, started and watched by its owner.

ready ─▶ (store) ─▶ join ─▶ mesh, model, data ─▶ started ─▶ step … step ─▶ done
"""

from __future__ import annotations

import argparse
import traceback
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from rayplane.comm.clock import clock_for
from rayplane.comm.mesh import Mesh, connect
from rayplane.errors import RayplaneError
from rayplane.spec.job import JobSpec
from rayplane.spec.layout import Layout
from rayplane.spec.source import load_model, model_folder
from rayplane.telemetry.channel import Channel, Message
from rayplane.train.checkpoint import Store
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank

OWNER_TIMEOUT_S = 600.0


def main() -> None:
    """Run one rank to its end; what goes wrong is told to the owner as "failed"."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    channel = Channel.open(parser.parse_args().fd)
    try:
        _live(channel)
    except RayplaneError as error:
        channel.send({"type": "failed", "kind": "user", "message": str(error), "traceback": ""})
        raise SystemExit(1) from error
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        channel.send({"type": "failed", "kind": "rank", "message": message, "traceback": traceback.format_exc()})
        raise SystemExit(1) from error


def _live(channel: Channel) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    channel.send({"type": "ready"})
    first = channel.expect(("host_store", "join"), OWNER_TIMEOUT_S)
    store = None
    if first["type"] == "host_store":
        store = dist.TCPStore(first["address"], 0, is_master=True, wait_for_workers=False)
        channel.send({"type": "store", "host": first["address"], "port": store.port})
        first = channel.expect("join", OWNER_TIMEOUT_S)
    _train(channel, first, store)


def _train(channel: Channel, join: Message, store: dist.Store | None) -> None:
    config = join["config"]
    job = JobSpec.model_validate(config["job"], strict=False)
    layout = Layout(**{**config["layout"], "boundaries": tuple(config["layout"]["boundaries"])})
    timeout_s = job.limits.step_timeout_s
    store = store or dist.TCPStore(join["host"], join["port"], is_master=False, timeout=timedelta(seconds=timeout_s))
    device = torch.device(join["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    mesh = connect(layout, join["rank"], store, device, timeout_s, clock_for(device))
    rank, checkpoints, data = _build(job, mesh)
    steps_done = 0
    if config["resume"]:
        manifest = checkpoints.load(Path(config["resume"]), rank.optimizer.tensors())
        steps_done = manifest.step
        rank.optimizer.loaded(steps_done)
    before = rank.evaluate() if steps_done == 0 else None
    mesh.clock.start()
    channel.send({"type": "started", "step": steps_done, "holdout_loss": before, "params": rank.spec.num_params})
    last = _steps(channel, rank, checkpoints, data, range(steps_done, job.train.steps), job.train.checkpoint.every)
    drained = last < job.train.steps
    after = None if drained else rank.evaluate()
    channel.send({"type": "done", "step": last, "drained": drained, "holdout_loss": after})
    mesh.close()


def _build(job: JobSpec, mesh: Mesh) -> tuple[TrainRank, Store, str]:
    """(rank with its initial weights, checkpoints, fingerprint of the data)."""
    spec, section = load_model(job.model), job.train.checkpoint
    directory = Path(section.dir)
    dataset = open_dataset(job.train.data, Path(), directory / "data", spec.vocab)
    rank = TrainRank(spec, job.train, mesh, dataset)
    if folder := model_folder(job.model):
        rank.read_weights(folder)
    checkpoints = Store(directory, section.keep, spec, mesh)
    if mesh.rank == 0:
        checkpoints.clean()
    return rank, checkpoints, dataset.fingerprint


def _steps(channel: Channel, rank: TrainRank, checkpoints: Store, data: str, steps: range, every: int) -> int:
    """Run the steps, saving as the job asks and after the last; returns how many are done, fewer when the owner had the job drained."""
    for index in steps:
        report, drain = rank.step(index, channel.draining)
        channel.send({"type": "step", **asdict(report)})
        if drain or report.step % every == 0 or report.step == steps.stop:
            path = checkpoints.save(report.step, rank.optimizer.tensors(), data)
            if report.rank == 0:
                channel.send({"type": "checkpoint", "step": report.step, "path": str(path)})
            rank.mesh.clock.start()
        if drain:
            return report.step
    return steps.stop


if __name__ == "__main__":
    main()
