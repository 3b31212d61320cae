"""The real rank of a training job, on a host that is a folder, which dies once after a step, its host's memory with it if wanted.

config["hosts"]      by rank: the folder that its host's memory is
config["dies"]       {"ranks": [2, 3], "after": 17, "with_memory": true}, in the first attempt
"""

import os
import shutil
import signal
import time
from pathlib import Path

import torch.distributed as dist

from rayplane.rank.life import live
from rayplane.telemetry.channel import Channel, Message
from rayplane.train import worker
from rayplane.train.rank import TrainRank

step = TrainRank.step


def train(channel: Channel, join: Message, store: dist.Store | None) -> None:
    config, rank = join["config"], join["rank"]
    folder = Path(config["hosts"][rank])
    config["memory"]["folder"] = str(folder)
    dies = config["dies"]

    def mortal(self, drain):
        answer = step(self, drain)
        if config["attempt"] == 1 and rank in dies["ranks"] and self.progress.step == dies["after"]:
            await_copy(folder, dies["copied"])
            if dies["with_memory"]:
                shutil.rmtree(folder, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    TrainRank.step = mortal
    worker._train(channel, join, store)


def await_copy(folder: Path, copied: str) -> None:
    """Until that copy is the only one: then every host has it. Who comes too late finds nothing at all."""
    while folder.is_dir() and [p.name for p in folder.glob("step-*")] != [copied]:
        time.sleep(0.01)


if __name__ == "__main__":
    live(train, again=True)
