"""A rank without torch: it joins, then does what `config["does"]` says; a mute one never joins. Its step is to sleep."""

import os
import sys
import time
from dataclasses import asdict
from functools import partial

from rayplane.comm.sever import sever
from rayplane.rank.attempts import attend
from rayplane.spec.report import StepReport
from rayplane.telemetry.channel import Channel, Message, Recalled


def report(rank: int, step: int) -> StepReport:
    return StepReport(rank, 0, 0, step, loss=1.0, grad_norm=1.0, lr=0.1, tokens=8, wall_s=0.02, phases={"forward": 0.02})


def host_store(address: str) -> tuple[None, int]:
    return None, 29500


def body(fd: int, channel: Channel, join: Message, store: None) -> None:
    channel.send(
        {
            "type": "started",
            "step": 0,
            "holdout_loss": None,
            "params": 1,
            "join": join,
            "pid": os.getpid(),
            "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
    )
    does = join["config"]["does"]
    is_victim = join["rank"] == join["config"].get("victim", 0)
    if does == "crash" and is_victim:
        raise SystemExit("the dummy crashes")
    if does == "fail" and is_victim:
        raise ValueError("the dummy fails")
    if does == "garbage" and is_victim:
        os.write(fd, b"this is no message\n")
    if does == "huge":
        channel.send({"type": "huge", "text": "x" * 4_000_000})
    if does == "chatty":
        for i in range(2000):
            channel.send({"type": "note", "i": i})
    step = 0
    while not channel.draining:
        if channel.recalled and not (does == "deaf" and is_victim):
            raise Recalled
        step += 1
        channel.send({"type": "step", **asdict(report(join["rank"], step))})
        time.sleep(0.02)
    channel.send({"type": "done", "step": step, "drained": True, "holdout_loss": None})


def main() -> None:
    fd = int(sys.argv[sys.argv.index("--fd") + 1])
    print("rank process", os.getpid(), "is up", flush=True)
    if os.environ.get("DUMMY_MUTE"):
        time.sleep(600)
    attend(Channel.open(fd, sever), partial(body, fd), host_store, clear=lambda: None)


if __name__ == "__main__":
    main()
