"""A training job of four ranks or two for `recovery.py`: run by the command, watched through its event log.

JobRun(folder, address, …) ── until_steps ──▶ a signal to ranks(), a stage actor or the driver ──▶ recovery(since) ──▶ Recovery
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from systems import RunError

JOB = """\
name: {name}
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, mlp: 64, vocab: 61, max_seq: 64, tied: true, init_std: 0.1}}
train:
  data: {{path: [tokens.npy], seq_len: 16, holdout: 0.1, holdout_samples: 8}}
  steps: 1000000
  global_batch: 8
  checkpoint: {{dir: runs/job, every: {every}, keep: 2{memory}}}
layout: {layout}
limits:
  restarts: {{rank: 1000, node: 1000, controller: 1000}}
  step_timeout_s: {step_timeout_s}
  replan: false
  straggler_factor: 1000
"""
FAILURES = ("RankExited", "RankFailed", "RankLost", "TimedOut")
WAIT_S = 180.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds since the failure, and steps that were done once more."""

    detect_s: float
    next_step_s: float
    lost_steps: int


class JobRun:
    """One `rayplane run` in a folder. Ends with the `with` block, by SIGKILL: the job is not to come to an end."""

    def __init__(self, folder: Path, address: str, layout: str, step_timeout_s: float, every: int = 5, memory_every: int = 0):
        self._folder, self._address, self._name = folder, address, folder.name
        folder.mkdir(exist_ok=True)
        np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 61, 4000).astype(np.uint16))
        memory = f", memory_every: {memory_every}" if memory_every else ""
        given = {"layout": layout, "step_timeout_s": step_timeout_s, "every": every, "memory": memory}
        (folder / "job.yaml").write_text(JOB.format(name=self._name, **given))
        self._events: list[dict[str, Any]] = []
        self._read_bytes = 0
        self.driver = self._start()

    def __enter__(self) -> JobRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.driver.wait(WAIT_S)
        self.driver.kill()

    def again(self) -> None:
        """Run it once more, at once: its driver is gone."""
        self.driver.wait(WAIT_S)
        self.driver = self._start()

    def until_steps(self, number: int) -> None:
        """Wait for so many steps more, of ranks that train."""
        since_unix_s = time.time()

        def had() -> bool:
            return sum(e["event"] == "StepDone" for e in self._since(since_unix_s)) >= number

        self._wait(had, f"{number} steps")

    def recovery(self, since_unix_s: float, told_by: tuple[str, ...] = FAILURES) -> Recovery:
        """Wait for the first step after a failure that began then, and of which one of these events tells."""

        def found() -> int | None:
            kinds = [e["event"] for e in self._since(since_unix_s)]
            started = kinds.index("Started") if "Started" in kinds else len(kinds)
            return next((i for i in range(started, len(kinds)) if kinds[i] == "StepDone"), None)

        self._wait(lambda: found() is not None, "a step after the failure")
        events, at = self._since(since_unix_s), found()
        assert at is not None
        heard = next((e["unix_s"] for e in events[:at] if e["event"] in told_by), float("nan"))
        last = max(e["step"] for e in self._events[: self._events.index(events[at])] if e["event"] == "StepDone")
        return Recovery(heard - since_unix_s, events[at]["unix_s"] - since_unix_s, max(0, last - events[at]["step"] + 1))

    def ranks(self) -> list[int]:
        """Process ids of those that live, by rank."""
        found = {}
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                words = (process / "cmdline").read_text().split("\0") if process.name.isdigit() else []
                if "rayplane.runtime.child" in words and words[3].startswith(f"{self._name}/"):
                    found[int(words[3].rpartition("/")[2])] = int(process.name)
        return [pid for _, pid in sorted(found.items())]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rayplane", "run", "job.yaml", "--json"]
        with (self._folder / "said").open("a") as said:
            environment = {**os.environ, "RAY_ADDRESS": self._address}
            return subprocess.Popen(command, cwd=self._folder, stdout=said, stderr=said, env=environment)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end_s or self.driver.poll() not in (None, -signal.SIGKILL):
                raise RunError(f"no {what}: {(self._folder / 'said').read_text()[-2000:]}")
            time.sleep(POLL_S)

    def _since(self, unix_s: float) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError), (self._folder / "runs/job/events.jsonl").open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if line.endswith(b"\n"):
                    self._read_bytes += len(line)
                    self._events.append(json.loads(line))
        return self._events[bisect_left(self._events, unix_s, key=lambda event: float(event["unix_s"])) :]
