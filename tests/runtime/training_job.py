"""A training job that takes seconds, run by the command as a user would: real driver, real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from dummies import eventually, runs
from prometheus_client.parser import text_string_to_metric_families

JOB = """\
name: {name}
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, mlp: 64, vocab: 61, max_seq: 64, tied: true, init_std: 0.1}}
train:
  data: {{path: [tokens.npy], seq_len: 16, holdout: 0.1, holdout_samples: 8}}
  steps: {steps}
  global_batch: 8
  optimizer: {{lr: {lr}, warmup_steps: 5, clip: 1.0, eps: {eps}}}
  checkpoint: {{dir: {directory}, every: {every}, keep: 2}}
layout: {layout}
limits: {{restarts: 2, step_timeout_s: 60}}
"""
DEFAULTS = {"steps": 40, "every": 5, "lr": 3e-3, "eps": 1e-5, "layout": "{pp: 2, micro_batch: 2}"}
START_TIMEOUT_S = 90.0


class Folder:
    """A folder with a job file, its data and, below `runs`, what runs of it leave."""

    def __init__(self, path: Path, runs: Path | None = None):
        self.path, self.runs = path, runs or path / "runs"
        self.name = f"job-{path.parent.name}-{path.name}"[:60]

    def write(self, **values: object) -> None:
        """Write the job file, with other values than usual, and random tokens."""
        directory = self.runs if self.runs != self.path / "runs" else Path("runs")
        text = JOB.format(name=self.name, directory=directory / "job", **{**DEFAULTS, **values})
        (self.path / "job.yaml").write_text(text)
        if not (self.path / "tokens.npy").exists():
            np.save(self.path / "tokens.npy", np.random.default_rng(0).integers(0, 61, 4000).astype(np.uint16))

    def events(self) -> list[dict[str, Any]]:
        """Whole lines of the job's event log."""
        path = self.runs / "job/events.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def losses(self) -> dict[int, set[float]]:
        """Every loss that each step ever had in this folder."""
        out = defaultdict(set)
        for event in self.events():
            if event["event"] == "StepDone":
                out[event["step"]].add(event["loss"])
        return dict(out)

    def ranks(self) -> dict[int, int]:
        """Process id of each rank that lives."""
        found = {}
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and runs(int(process.name)):
                try:
                    words = (process / "cmdline").read_text().split("\0")
                except OSError:
                    continue
                if "rayplane.runtime.child" in words and words[3].startswith(f"{self.name}/"):
                    found[int(words[3].rpartition("/")[2])] = int(process.name)
        return found


class Run(Folder):
    """One `rayplane run` of the job in a folder. Ends with the `with` block."""

    def __init__(self, path: Path, *options: str, environment: dict[str, str] | None = None, **values: object):
        super().__init__(path)
        self.write(**values)
        self._known = len(self.events())
        command = [sys.executable, "-m", "rayplane", "run", "job.yaml", "--json", *options]
        with (path / "out").open("w") as out, (path / "err").open("w") as err:
            self.driver = subprocess.Popen(command, cwd=path, stdout=out, stderr=err, env={**os.environ, **(environment or {})})

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.kill()
        self.driver.wait(30)

    def until(self, event: str, number: int = 1) -> None:
        """Wait until this run has had so many events of a kind."""

        def had() -> bool:
            assert self.driver.poll() is None, f"ended too early: {self.said()}"
            return sum(e["event"] == event for e in self.events()[self._known :]) >= number

        assert eventually(had, START_TIMEOUT_S), f"no {event}: {self.said()}"

    def end(self, timeout_s: float = 90.0) -> int:
        """Wait for the command; its exit code."""
        return self.driver.wait(timeout_s)

    def result(self) -> dict[str, Any]:
        """The last line of standard output, which has no other."""
        (line,) = (self.path / "out").read_text().splitlines()
        final: dict[str, Any] = json.loads(line)
        return final

    def said(self) -> str:
        """What the command said to people."""
        return (self.path / "err").read_text()

    def metrics(self) -> dict[str, list[float]]:
        """What Prometheus gets from all exporters of the run: values by `name label=value …`, without the run's name."""
        [entry] = json.loads((self.runs / "job/metrics-targets.json").read_text())
        found = defaultdict(list)
        for target in entry["targets"]:
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as page:
                text = page.read().decode()
            for sample in (s for family in text_string_to_metric_families(text) for s in family.samples):
                labels = [f"{label}={value}" for label, value in sorted(sample.labels.items()) if label != "run"]
                assert sample.labels["run"] == self.name
                found[" ".join([sample.name, *labels])].append(sample.value)
        return dict(found)


def ends(pids: list[int], timeout_s: float) -> bool:
    """Whether all these processes end in time."""
    return eventually(lambda: not any(map(runs, pids)), timeout_s)
