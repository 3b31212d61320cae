"""What the controller costs for many stages, whose ranks are simulated.

    python benchmarks/scale_control.py [--json] [--steps-s 2] [--profile]

    controller ──poll──▶ a group in memory: every rank reports each step, as ranks do, and does nothing else

first        from the start to the first step done by all: placing (in memory), every rank's "started", every rank's first report
messages/s   as fast as the controller takes them, all that are due at a look
burst        CPU ms of a step whose reports come all at once
spread       CPU ms of a step whose reports come one after the other, evenly over a step of 1 / --steps-s seconds, and the share of a
             core that this is; `looks`: how often the controller looked in a step; `steps/s`: that it keeps up
memory       resident MB that the run added, and KB for each step more
failure      CPU seconds from a rank's end, and all others' "connection closed" at once, to the first step of the next attempt

The simulation's own CPU time is not counted. Each case is a process of its own. --profile lists where the largest case spends its time.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rayplane.control.event import StepDone
from rayplane.control.loop import Controller
from rayplane.control.slow_watch import SlowWatch
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.runtime.group import Launch, Message, RankMessage
from rayplane.spec.job import LimitsSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot
from rayplane.spec.report import PHASES, StepReport

STAGES = (16, 128, 1024)
MESSAGES = 60_000
"""Of a case at full speed."""
SPREAD_STEPS = 8
PHASES_S = {
    **dict.fromkeys(PHASES, 0.0),
    "forward": 0.2,
    "backward": 0.4,
    "recv_wait": 0.1,
    "dp": 0.1,
    "optimizer": 0.1,
    "data": 0.05,
    "host": 0.05,
}
PAGE_BYTES = resource.getpagesize()


class SimulatedRanks:
    """A WorkerGroup whose ranks report `steps` steps; rank r its step n at (n + r / ranks) / steps_s, or at once where that is 0.

    Where it `fails`, the first attempt ends after one step: rank 0 exits, and all others lose their connections.
    """

    def __init__(self, ranks: int, steps: int, steps_s: float, fails: bool):
        self._ranks, self._steps, self._steps_s, self._fails = ranks, steps, steps_s, fails
        self._said = 0
        self.failed_cpu_s = 0.0
        """When it did, on this thread's clock."""
        self._began_s = 0.0
        self.looks = 0
        self.cpu_s = 0.0
        """Of the simulation itself."""

    def start(self, launch: Launch, give_up: Callable[[], bool]) -> None:
        """Nothing is spawned."""
        self._began_s, self._said = time.monotonic(), 0

    def poll(self, timeout_s: float) -> list[RankMessage]:
        """What is due; where nothing is, waiting for the first."""
        began_s = time.thread_time()
        self.looks += 1
        total = self._ranks * (self._steps + 2)
        if self._fails and self._said == 2 * self._ranks:
            self._fails, self._said, self.failed_cpu_s = False, total, began_s
            return self._burst()
        if self._steps_s and self._said < total:
            time.sleep(min(timeout_s, max(0.0, self._due_s(self._said) - time.monotonic())))
        first = self._said
        while self._said < total and self._said - first < self._ranks and self._due_s(self._said) <= time.monotonic():
            self._said += 1
        messages = [RankMessage(number % self._ranks, self._message(number)) for number in range(first, self._said)]
        self.cpu_s += time.thread_time() - began_s
        return messages

    def send(self, message: Message) -> None:
        """Nobody listens."""

    def recall(self, timeout_s: float, gone: frozenset[int] = frozenset()) -> frozenset[int]:
        """None fails."""
        return frozenset(range(self._ranks))

    def kill(self) -> None:
        """Nothing is there to be killed."""

    def close(self) -> None:
        """Nothing is there to be closed."""

    def _burst(self) -> list[RankMessage]:
        closed = {"type": "failed", "kind": "rank", "message": "Connection closed by peer", "traceback": ""}
        end = {"type": "exit", "code": -9, "signal": 9, "log": ""}
        return [RankMessage(0, end), *(RankMessage(rank, closed) for rank in range(1, self._ranks))]

    def _due_s(self, number: int) -> float:
        return self._began_s + number / self._ranks / self._steps_s if self._steps_s else 0.0

    def _message(self, number: int) -> Message:
        """The number-th message of all: first every rank starts, last every rank is done."""
        step, rank = divmod(number, self._ranks)
        if step == 0:
            return {"type": "started", "step": 0, "holdout_loss": 4.0, "params": 10**9}
        if step > self._steps:
            return {"type": "done", "step": self._steps, "drained": False, "holdout_loss": 3.0}
        shared = {"type": "step", "step": step, "loss": 4.0 - step / 1e6, "grad_norm": 1.0, "lr": 1e-3, "tokens": 4096, "wall_s": 1.0}
        return {**shared, "rank": rank, "replica": 0, "stage": rank, "phases": PHASES_S, "comm_bytes": {"pp": 10**6}}


class Pace:
    """An observer that notes when steps were done, and with how much memory the first."""

    def __init__(self) -> None:
        self.first_s = self.last_s = self.last_cpu_s = 0.0
        self.first_bytes = 0

    def on_event(self, state: object, event: object) -> None:
        """Only steps matter."""
        if isinstance(event, StepDone):
            self.last_s, self.last_cpu_s = time.monotonic(), time.thread_time()
            if not self.first_s:
                self.first_s, self.first_bytes = self.last_s, _resident_bytes()

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Of no interest."""


def run_case(stages: int, steps_s: float, fails: bool, profile: bool) -> dict[str, Any]:
    """One run of a controller in this process."""
    steps = 1 if fails else SPREAD_STEPS if steps_s else max(SPREAD_STEPS, MESSAGES // stages)
    layout = Layout(pp=stages, boundaries=(1,) * stages)
    placement = Placement(tuple(Slot(0, stage, 0, (stage,), f"node-{stage // 8}", f"island-{stage // 8}") for stage in range(stages)))
    ranks, pace, profiler = SimulatedRanks(stages, steps, steps_s, fails), Pace(), cProfile.Profile()
    slow = SlowWatch(stages, 1.5, lambda *_: False)
    with tempfile.TemporaryDirectory() as folder:
        task = Task(Path(folder) / "job", steps, LimitsSection(), Launch("simulated", layout, placement, "", {}))
        before_bytes = _resident_bytes()
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        controller = Controller(task, ranks, (pace, slow), (slow,))
        result = profiler.runcall(controller.run, Stop()) if profile else controller.run(Stop())
        wall_s, cpu_s = time.monotonic() - began_s, time.thread_time() - began_cpu_s - ranks.cpu_s
    assert (result.state, result.step) == ("finished", steps), result.message
    after_bytes = _resident_bytes()
    if profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(14)
    if fails:
        return {"failure_cpu_s": pace.last_cpu_s - ranks.failed_cpu_s, "restarts": result.restarts}
    return {
        "first_s": pace.first_s - began_s,
        "messages_s": stages * (steps + 2) / wall_s,
        "cpu_s_step": cpu_s / steps,
        "cpu_share": cpu_s / wall_s,
        "looks_step": ranks.looks / steps,
        "steps_s": (steps - 1) / (pace.last_s - pace.first_s),
        "memory_mb": (after_bytes - before_bytes) / 1e6,
        "memory_kb_step": max(0, after_bytes - pace.first_bytes) / 1e3 / (steps - 1),
    }


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def _apart(stages: int, steps_s: float, fails: bool = False) -> dict[str, Any]:
    """The case in a process of its own."""
    command = [sys.executable, __file__, "--case", str(stages), "--steps-s", str(steps_s), *(["--fails"] if fails else [])]
    figures: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return figures


def main() -> None:
    """Print a row for each number of stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps-s", type=float, default=2.0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fails", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(run_case(given.case, given.steps_s, given.fails, profile=False)))
        return
    if given.profile:
        for steps_s, fails in ((0.0, False), (given.steps_s, False), (0.0, True)):
            run_case(STAGES[-1], steps_s, fails, profile=True)
        return
    told = {
        str(stages): {"burst": _apart(stages, 0.0), "spread": _apart(stages, given.steps_s), "failure": _apart(stages, 0.0, fails=True)}
        for stages in STAGES
    }
    heads = {
        "stages": 6,
        "first": 8,
        "messages/s": 11,
        "burst": 9,
        "spread": 9,
        "of a core": 10,
        "looks": 6,
        "steps/s": 8,
        "failure": 9,
    }
    print(" ".join(f"{name:>{width}}" for name, width in heads.items()), "  memory")
    for stages, case in told.items():
        burst, spread = case["burst"], case["spread"]
        print(
            f"{stages:>6} {1e3 * burst['first_s']:>5.0f} ms {burst['messages_s']:>11,.0f} {1e3 * burst['cpu_s_step']:>6.2f} ms"
            f" {1e3 * spread['cpu_s_step']:>6.2f} ms {spread['cpu_share']:>10.1%} {spread['looks_step']:>6.0f}"
            f" {spread['steps_s']:>8.2f} {case['failure']['failure_cpu_s']:>7.2f} s"
            f" {burst['memory_mb']:>5.1f} MB +{burst['memory_kb_step']:.2f} KB a step"
        )
    if given.json:
        print(json.dumps({"asked_steps_s": given.steps_s, "stages": told}))


if __name__ == "__main__":
    main()
