"""Ray Train under the failures of `recovery.py`: two workers, gloo, DDP, a checkpoint every few steps.

ADDRESS FOLDER EVERY        appends {"unix_s", "rank", "pid", "step"} of every step to FOLDER/steps.jsonl, until it is killed
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

WORKERS = 2
HIDDEN, BATCH = 64, 8
STEP_S = 0.005
"""A step computes next to nothing; this keeps the file of steps small."""
STATE = "state.pt"


def train(config: dict[str, Any]) -> None:
    """The loop of one worker, as Ray's guide has it: go on from the newest checkpoint, report one every few steps."""
    torch.manual_seed(0)
    context = ray.train.get_context()
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)))
    optimizer = torch.optim.AdamW(model.parameters())
    step = _resume(model, optimizer)
    rank, every = context.get_world_rank(), config["every"]
    with Path(config["steps"]).open("a", buffering=1) as steps:
        while True:
            time.sleep(STEP_S)
            loss = model(torch.randn(BATCH, HIDDEN)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            steps.write(json.dumps({"unix_s": time.time(), "rank": rank, "pid": os.getpid(), "step": step}) + "\n")
            if step % every == 0:
                _report(model, optimizer, step, rank)


def _resume(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    checkpoint = ray.train.get_checkpoint()
    if not checkpoint:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / STATE)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _report(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, Path(folder) / STATE)
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)


def main(address: str, folder: Path, every: int) -> None:
    """Train until somebody ends this."""
    ray.init(address, log_to_driver=False)
    TorchTrainer(
        train,
        train_loop_config={"every": every, "steps": str(folder / "steps.jsonl")},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORKERS, use_gpu=False),
        run_config=RunConfig(name="job", storage_path=str(folder / "storage"), failure_config=FailureConfig(max_failures=-1)),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
