"""One rank of rayplane on the reference model, started by torchrun: rayplane_rank.py PORT WARMUP STEPS LAYOUT-JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from reference import BETAS, CLIP, EPS, GLOBAL_BATCH, LR, SEQ_LEN, SPEC, WEIGHT_DECAY, measure, tokens

from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import connect
from rayplane.spec.job import CheckpointSection, DataSection, OptimizerSection, TrainSection
from rayplane.spec.layout import Layout
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank


def main() -> None:
    port, warmup, steps, layout = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    layout = Layout(**{**layout, "boundaries": tuple(layout["boundaries"])})
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    mesh = connect(layout, rank, store, torch.device("cpu"), 300.0, PhaseClock())
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "tokens.npy", tokens())
        section = TrainSection(
            data=DataSection(path=[str(Path(folder) / "tokens.npy")], seq_len=SEQ_LEN),
            steps=1000,
            global_batch=GLOBAL_BATCH,
            optimizer=OptimizerSection(
                lr=LR, schedule="constant", weight_decay=WEIGHT_DECAY, beta1=BETAS[0], beta2=BETAS[1], eps=EPS, clip=CLIP
            ),
            checkpoint=CheckpointSection(dir=folder),
        )
        dataset = open_dataset(section.data, Path(), Path(folder) / "data", SPEC.vocab)
        train = TrainRank(SPEC, section, mesh, dataset)
        mesh.clock.start()
        reports = []

        def step(index: int) -> float:
            reports.append(train.step(drain=False)[0])
            return reports[-1].loss

        measure(rank, step, warmup, steps)
        if "--phases" in sys.argv:
            for report in reports:
                print(rank, {k: round(v, 3) for k, v in report.phases.items()}, flush=True)
        mesh.close()


main()
