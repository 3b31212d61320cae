"""A WorkerGroup in memory: each attempt is a script of polls, each poll a list of (rank, message)."""

from __future__ import annotations

from collections.abc import Callable

from rayplane.runtime.group import Launch, RankMessage
from rayplane.runtime.patience import GaveUp
from rayplane.spec.layout import Layout
from rayplane.spec.manifest import folder_name
from rayplane.spec.plan import Placement

PHASES = {"forward": 0.2, "backward": 0.4, "recv_wait": 0.1, "dp": 0.1, "optimizer": 0.1, "host": 0.1}


class FakeGroup:
    """Plays `scripts`, one per start. A callable in a script is called when its turn comes; a drain continues with `drained`."""

    def __init__(self, *scripts, drained=(), late_words=(), refuse=None, busy=None):
        self.scripts = list(scripts)
        self.drained, self.late_words, self.refuse = list(drained), list(late_words), refuse
        self.busy = busy
        """Called once while the group waits for places."""
        self.launches: list[Launch] = []
        self.calls: list[str] = []
        self.blamed: list[list[int]] = []
        self.script: list = []
        self.killed = False

    def start(self, launch, give_up):
        self.calls.append("start")
        self.launches.append(launch)
        if self.refuse:
            raise self.refuse
        if self.busy:
            self.busy()
            assert give_up(), "a group that waits is told of a stop"
            raise GaveUp
        self.script, self.killed = list(self.scripts.pop(0)), False

    def poll(self, timeout_s):
        assert self.launches and not self.refuse, "poll comes after start"
        if self.killed:
            words, self.late_words = self.late_words, []
            return [RankMessage(rank, message) for rank, message in words]
        step = self.script.pop(0) if self.script else []
        words = step() if isinstance(step, Callable) else step
        return [RankMessage(rank, message) for rank, message in words] if isinstance(words, list) else []

    def send(self, message):
        self.calls.append(message["type"])
        if message["type"] == "drain":
            self.script = list(self.drained)

    def recall(self, timeout_s, gone):
        self.calls.append("recall")
        self.blamed.append(sorted(gone))
        self.killed = True
        return frozenset(range(self.launches[-1].layout.size)) - gone

    def kill(self):
        self.calls.append("kill")
        self.killed = True

    def close(self):
        self.calls.append("close")


def launch(size=2):
    return Launch("job", Layout(dp=size, boundaries=(2,)), Placement(()), "entry", {"job": {}})


def started(size=2, step=0, holdout=None):
    message = {"type": "started", "step": step, "holdout_loss": holdout, "params": 10}
    return [(rank, dict(message)) for rank in range(size)]


def step(number, ranks=(0, 1)):
    shared = {"type": "step", "stage": 0, "step": number, "loss": 1.0 / number, "grad_norm": 1.0, "lr": 0.1}
    cost = {"tokens": 64, "wall_s": 1.0, "phases": PHASES, "comm_bytes": {}}
    return [(rank, {**shared, **cost, "rank": rank, "replica": rank}) for rank in ranks]


def save(directory, number):
    folder = directory / folder_name(number)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return str(folder)


def saved(directory, number):
    """A rank that saves when its turn comes."""
    return lambda: [(0, {"type": "checkpoint", "step": number, "path": save(directory, number)})]


def done(number, size=2, drained=False, holdout=None):
    out = []
    for rank in range(size):
        out.append((rank, {"type": "done", "step": number, "drained": drained, "holdout_loss": holdout}))
        out.append((rank, exited(code=0)))
    return out


def exited(code=0, signal=0, log=""):
    return {"type": "exit", "code": code, "signal": signal, "log": log}


def failed(message, kind="rank"):
    return {"type": "failed", "kind": kind, "message": message, "traceback": "Traceback"}
