"""A training job under a script of disturbances, from its start to a drained end.

work ──after_s──▶ strike ──▶ Started again? ──▶ StepDone ──▶ the next one
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from disturbances import Disturbance
from dummies import eventually, parent, runs
from evidence import Log
from training_job import Run

LAYOUT = "{pp: 2, micro_batch: 2}"
STEPS = 10**6
"""More than anybody waits for: the end is a drain."""
STEP_TIMEOUT_S = 30.0
WHOLE_S = 120.0
END_S = 60.0
RESTARTS = "{rank: 1000, node: 1000, controller: 1000}"
LIMITS = f"{{restarts: {RESTARTS}, step_timeout_s: {STEP_TIMEOUT_S}, replan: false, straggler_factor: 1000}}"


class ChaosRun(Run):
    """A job that may fail often, does not end by itself, and copies its state to `ram`."""

    def write(self, **values: object) -> None:
        ram = self.path / "ram"
        ram.mkdir(exist_ok=True)
        super().write(**{"steps": STEPS, "every": f"25, memory_every: 5, memory_dir: {ram}", "layout": LAYOUT, **values})
        path, usual = self.path / "job.yaml", "{restarts: 2, step_timeout_s: 60}"
        assert usual in path.read_text()
        path.write_text(path.read_text().replace(usual, LIMITS))


class Nodes(Protocol):
    """Machines that can be taken away. Where there are none, no script does so."""

    def remove(self) -> None:
        """One of them is gone."""

    def add(self) -> None:
        """It is back."""


class TrainingChaos:
    """`start` runs the command in `folder`, each time that its driver is gone."""

    def __init__(self, folder: Path, start: Callable[[Path], ChaosRun], nodes: Nodes | None = None):
        self.log = Log(folder / "runs/job/events.jsonl")
        self._folder, self._start, self._nodes = folder, start, nodes
        self._run = start(folder)

    def play(self, strikes: tuple[Disturbance, ...]) -> int:
        """Strike one after the other; how many steps were done when the job has been stopped in the end."""
        try:
            self._until_work(0.0)
            for strike, following in pairwise([*strikes, None]):
                time.sleep(strike.after_s)
                struck_s = time.time()
                getattr(self, f"_{strike.what}")(strike)
                if following is None or following.after_s:
                    self._until_work(time.time() if strike.what == "pause" else struck_s, anew=strike.what != "pause")
            self._run.driver.send_signal(signal.SIGTERM)
            assert self._run.end(END_S) == 0, self._run.said()
        finally:
            with self._run:
                self.log.read()
        final = self._run.result()
        assert final["state"] == "drained", final
        assert self._run.ranks() == {}
        return int(final["steps"])

    def losses(self) -> dict[int, set[float]]:
        """Every loss that each step ever had."""
        found = defaultdict(set)
        for event in self.log.read():
            if event["event"] == "StepDone":
                found[event["step"]].add(event["loss"])
        return dict(found)

    def restarts(self) -> int:
        """How often a driver started ranks anew."""
        kinds = [event["event"] for event in self.log.read()]
        return kinds.count("Placed") - kinds.count("Submitted")

    def _until_work(self, since_unix_s: float, anew: bool = True) -> None:
        """Wait for a step after that, of ranks that started after it where `anew`."""

        def works() -> bool:
            assert self._run.driver.poll() is None, f"ended too early: {self._run.said()}"
            kinds = [e["event"] for e in self.log.since(since_unix_s)]
            begun = kinds[kinds.index("Started") :] if "Started" in kinds else []
            return "StepDone" in (begun if anew else kinds)

        assert eventually(works, WHOLE_S), f"no step within {WHOLE_S:g} s: {self._run.said()}"

    def _victim(self, strike: Disturbance) -> int:
        """A rank that lives; right after another strike there may be none for a moment."""
        assert eventually(lambda: bool(self._run.ranks()), WHOLE_S), f"no rank lives: {self._run.said()}"
        return strike.choose([pid for _, pid in sorted(self._run.ranks().items())])

    def _kill(self, strike: Disturbance) -> None:
        victim = self._victim(strike)
        assert runs(victim) or not strike.after_s
        _signal(victim, signal.SIGKILL, strike)
        assert eventually(lambda: not runs(victim), WHOLE_S)

    def _pause(self, strike: Disturbance) -> None:
        victim = self._victim(strike)
        _signal(victim, signal.SIGSTOP, strike)
        assert eventually(lambda: not runs(victim) or stands_still(victim), WHOLE_S)
        time.sleep(strike.lasts_s)
        with suppress(ProcessLookupError):  # where the machine was busy, it may have stood still for too long
            os.kill(victim, signal.SIGCONT)

    def _stop(self, strike: Disturbance) -> None:
        victim, struck_s = self._victim(strike), time.time()
        _signal(victim, signal.SIGSTOP, strike)
        assert eventually(lambda: not runs(victim), WHOLE_S), "the rank that stood still was not ended"
        assert [e for e in self.log.since(struck_s) if e["event"] in ("TimedOut", "RankFailed", "RankExited")]

    def _actor(self, strike: Disturbance) -> None:
        rank = self._victim(strike)
        actor = parent(rank)
        _signal(actor, signal.SIGKILL, strike)
        assert eventually(lambda: not runs(actor) and not runs(rank), WHOLE_S), "a rank outlives its stage actor"

    def _driver(self, strike: Disturbance) -> None:
        ranks = list(self._run.ranks().values())
        with self._run:
            _signal(self._run.driver.pid, signal.SIGKILL, strike)
            self._run.driver.wait(END_S)
        self._run = self._start(self._folder)
        assert eventually(lambda: not any(map(runs, ranks)), WHOLE_S), "ranks outlive their driver"

    def _disk(self, strike: Disturbance) -> None:
        with self._run, FileIO(self._folder / "runs/filler", "w") as filler:
            assert eventually(lambda: _fill(filler) or self._run.driver.poll() is not None, WHOLE_S), self._run.said()
        assert self._run.driver.returncode == 1 and "No space left on device" in self._run.said(), self._run.said()
        (self._folder / "runs/filler").unlink()
        self._run = self._start(self._folder)

    def _node(self, strike: Disturbance) -> None:
        assert self._nodes
        struck_s = time.time()
        self._nodes.remove()
        assert eventually(lambda: any(e["event"] == "RankLost" for e in self.log.since(struck_s)), WHOLE_S), self._run.said()
        time.sleep(strike.lasts_s)
        self._nodes.add()


def stands_still(pid: int) -> bool:
    """Whether a process is stopped."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


def _signal(pid: int, number: signal.Signals, strike: Disturbance) -> None:
    """A process may only be gone already where the strike comes into a recovery."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        assert not strike.after_s, f"{pid} was gone before {strike}"


def _fill(file: FileIO) -> None:
    """Write until nothing more goes in."""
    with suppress(OSError):
        while file.write(bytes(2**20)):
            continue
