"""Runs one system on the reference model: each has a rank script in peers/, and may have an interpreter of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from reference import GLOBAL_BATCH, MARK, SAMPLES, SEQ_LEN, SPEC, TOKENS, WEIGHTS, Task, tokens

from rayplane.spec.job import DataSection, SourceSection
from rayplane.spec.sharding import Chunk
from rayplane.train.data import open_dataset
from rayplane.train.init import initial

HERE = Path(__file__).parent
DISTRIBUTIONS = {
    "rayplane": "rayplane",
    "torch": "torch",
    "torchtitan": "torchtitan",
    "megatron": "megatron-core",
    "deepspeed": "deepspeed",
}
"""What each system's interpreter must have installed."""
TIMEOUT_S = 900.0


class RunError(Exception):
    """A system that could not be run, in a line."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the ranks of one run measured: speed of the slowest, CPU seconds a step of all, memory and phases of each."""

    tokens_s: float
    cpu_s: float
    peak_gb: tuple[float, ...]
    base_gb: tuple[float, ...]
    losses: tuple[float, ...]
    phases: tuple[dict[str, float], ...]


@dataclass(slots=True)
class Bench:
    """A folder with the task's data, and the interpreter of each system."""

    folder: Path
    pythons: dict[str, str] = field(default_factory=dict)

    def prepare(self, num_samples: int) -> None:
        """Write tokens, the samples in the order in which rayplane takes them, and the initial weights."""
        np.save(self.folder / TOKENS, tokens())
        section = DataSection(path=[SourceSection(path=str(self.folder / TOKENS))], seq_len=SEQ_LEN)
        dataset = open_dataset(section, Path(), self.folder / "data", SPEC.vocab)
        np.save(self.folder / SAMPLES, np.stack([dataset.sample(i) for i in range(num_samples)]))
        whole = {t.name: initial(t, Chunk((0,) * len(t.shape), t.shape), seed=0).numpy() for t in SPEC.tensors()}
        np.savez(self.folder / WEIGHTS, **whole)  # type: ignore[arg-type]

    def python(self, system: str) -> str:
        """The interpreter of a system."""
        return self.pythons.get(system, sys.executable)

    def version(self, system: str) -> str:
        """The version that a system's interpreter has; RunError where it has none."""
        distribution = DISTRIBUTIONS[system]
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        done = subprocess.run([self.python(system), "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(f"{distribution} is not installed in {self.python(system)}")
        return done.stdout.strip()

    def run(self, system: str, task: Task) -> Run:
        """One run of one system, each rank a process with one thread."""
        size = task.dp * task.pp * task.cp * task.tp
        command = [self.python(system), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        command += [str(HERE / "peers" / f"{system}_rank.py"), json.dumps(asdict(task))]
        paths = [str(HERE), str(HERE.parent)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False)
        ranks = [json.loads(line.removeprefix(MARK)) for line in done.stdout.splitlines() if line.startswith(MARK)]
        if len(ranks) != size:
            raise RunError(reason(done.stderr))
        return _joined(sorted(ranks, key=lambda r: int(r["rank"])))


def task(folder: Path, warmup: int, steps: int, **fields: Any) -> Task:
    """A task on a free port; boundaries default to one chunk."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Task(**{"folder": str(folder), "port": port, "warmup": warmup, "steps": steps, "boundaries": (SPEC.layers,), **fields})


def samples_of(steps: int) -> int:
    """Samples that some steps take."""
    return steps * GLOBAL_BATCH


def reason(stderr: str) -> str:
    """The error that a failed run wrote: its last exception, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line and "ChildFailedError" not in line]
    return (errors or lines or ["no output"])[-1][:300]


def _joined(ranks: list[dict[str, Any]]) -> Run:
    """One run from what its ranks said; the loss is the mean over those that know it (replicas know their own share's)."""
    known = [r["losses"] for r in ranks if r["losses"][0] is not None]
    return Run(
        tokens_s=min(r["tokens_s"] for r in ranks),
        cpu_s=sum(r["cpu_s"] for r in ranks),
        peak_gb=tuple(r["peak_gb"] for r in ranks),
        base_gb=tuple(r["base_gb"] for r in ranks),
        losses=tuple(float(np.mean(losses)) for losses in zip(*known, strict=True)),
        phases=tuple(r["phases"] for r in ranks),
    )
