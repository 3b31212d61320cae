"""One rank of rayplane on the reference model."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from reference import BETAS, CLIP, EPS, GLOBAL_BATCH, LR, SEQ_LEN, SPEC, TOKENS, WEIGHT_DECAY, Meter, Task

from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import connect
from rayplane.spec.job import CheckpointSection, DataSection, OptimizerSection, SourceSection, TrainSection
from rayplane.spec.layout import Layout
from rayplane.spec.report import StepReport
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank


def section(folder: str) -> TrainSection:
    """The training section of the reference job, over the tokens in a folder."""
    optimizer = OptimizerSection(
        lr=LR, schedule="constant", weight_decay=WEIGHT_DECAY, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, clip=CLIP
    )
    return TrainSection(
        data=DataSection(path=[SourceSection(path=str(Path(folder) / TOKENS))], seq_len=SEQ_LEN),
        steps=1000,
        global_batch=GLOBAL_BATCH,
        optimizer=optimizer,
        checkpoint=CheckpointSection(dir=folder),
    )


def layout_of(task: Task) -> Layout:
    """The task's layout."""
    return Layout(
        dp=task.dp,
        pp=task.pp,
        cp=task.cp,
        tp=task.tp,
        sp=task.sp,
        vpp=task.vpp,
        zero=task.zero,
        schedule=task.schedule or "1f1b",
        micro_batch=task.micro_batch,
        boundaries=task.boundaries,
    )


def seconds_by_phase(reports: list[StepReport]) -> dict[str, float]:
    """The mean step by phase."""
    names = dict.fromkeys(name for report in reports for name in report.phases)
    return {name: round(sum(report.phases.get(name, 0.0) for report in reports) / len(reports), 4) for name in names}


def main() -> None:
    task, meter, rank = Task.read(), Meter(), int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    store = dist.TCPStore("127.0.0.1", task.port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    mesh = connect(layout_of(task), rank, store, torch.device("cpu"), 300.0, PhaseClock())
    job = section(task.folder)
    dataset = open_dataset(job.data, Path(), Path(task.folder) / "data", SPEC.vocab)
    train = TrainRank(SPEC, job, mesh, dataset)
    mesh.clock.start()
    reports: list[StepReport] = []

    def step(index: int) -> float:
        reports.append(train.step(drain=False)[0])
        return reports[-1].loss

    meter.measure(rank, task, step, lambda: seconds_by_phase(reports[task.warmup :]))
    mesh.close()


if __name__ == "__main__":
    main()
