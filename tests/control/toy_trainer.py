"""A rank without torch that trains nothing: steps, checkpoints, and dies once where its config says so."""

import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from fake_group import save

from rayplane.spec.report import StepReport
from rayplane.telemetry.channel import Channel


def report(rank: int, step: int) -> StepReport:
    return StepReport(rank, 0, rank, step, loss=1.0 / step, grad_norm=1.0, lr=0.1, tokens=8, wall_s=0.01, phases={"forward": 0.01})


def main() -> None:
    channel = Channel.open(int(sys.argv[sys.argv.index("--fd") + 1]))
    channel.send({"type": "ready"})
    order = channel.expect(("host_store", "join"), 30)
    if order["type"] == "host_store":
        channel.send({"type": "store", "host": order["address"], "port": 29500})
        order = channel.expect("join", 30)
    rank, config = order["rank"], order["config"]
    step = int(config["resume"].rsplit("-", 1)[-1]) if config["resume"] else 0
    saved = Path(config["dir"]) / f"step-{config['saves_at']:08d}" / "manifest.json"
    channel.send({"type": "started", "step": step, "holdout_loss": None, "params": 1})
    while step < config["steps"] and not channel.draining:
        step += 1
        if (rank, step, config["attempt"]) == (1, config["dies_at"], 1):
            while not saved.exists():
                threading.Event().wait(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if (rank, step) == (1, config["stands_still_at"]):
            threading.Event().wait()
        channel.send({"type": "step", **asdict(report(rank, step))})
        if rank == 0 and step == config["saves_at"] and not saved.exists():
            channel.send({"type": "checkpoint", "step": step, "path": save(Path(config["dir"]), step)})
        if (rank, step) == (0, config["waits_at"]):
            while not channel.draining:
                threading.Event().wait(0.01)
    channel.send({"type": "done", "step": step, "drained": channel.draining, "holdout_loss": None})


if __name__ == "__main__":
    main()
