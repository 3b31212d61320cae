"""The reference model of the benchmarks, and what every rank of every system does alike: read its task, start from given weights, say
what it measured in one JSON line.

    SYSTEM_rank.py TASK-JSON          a rank, started by torchrun; nothing of rayplane but its numbers is needed here
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rayplane.spec.model import ModelSpec

SPEC = ModelSpec(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, mlp=1376, vocab=8192, name="reference")
SEQ_LEN, GLOBAL_BATCH, NUM_SAMPLES = 256, 16, 256
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
MARK = "rank-result "
TOKENS, SAMPLES, WEIGHTS = "tokens.npy", "samples.npy", "weights.npz"
RESET_PEAK = "5"
"""What proc(5) wants in clear_refs to make the peak resident size the current one."""


def tokens() -> np.ndarray:
    """A fixed random token array, the same for every system."""
    return np.random.default_rng(0).integers(0, SPEC.vocab, NUM_SAMPLES * SEQ_LEN + 1).astype(np.uint16)


@dataclass(frozen=True, slots=True)
class Task:
    """What one rank is asked to do. Boundaries are layers per chunk; a peer reads `schedule` in its own words."""

    folder: str
    """With TOKENS; SAMPLES, which are those tokens in the run's order, [n, SEQ_LEN + 1]; WEIGHTS, the initial tensors by name."""
    port: int
    warmup: int
    steps: int
    micro_batch: int
    boundaries: tuple[int, ...]
    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    sp: bool = False
    zero: int = 0
    vpp: int = 1
    schedule: str = ""

    @staticmethod
    def read() -> Task:
        """This process's task, from the command line."""
        fields = json.loads(sys.argv[1])
        return Task(**{**fields, "boundaries": tuple(fields["boundaries"])})

    @property
    def num_microbatches(self) -> int:
        """Microbatches per step of one replica."""
        return GLOBAL_BATCH // self.dp // self.micro_batch

    def layers(self, chunk: int) -> range:
        """Layers of a model chunk."""
        first = sum(self.boundaries[:chunk])
        return range(first, first + self.boundaries[chunk])

    def batch(self, step: int, replica: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Ids and targets of a replica's samples of a step, each [n, SEQ_LEN]."""
        share = GLOBAL_BATCH // self.dp
        first = step * GLOBAL_BATCH + replica * share
        rows = np.load(Path(self.folder) / SAMPLES)[first : first + share].astype(np.int64)
        return rows[:, :-1], rows[:, 1:]

    def tensors(self) -> Mapping[str, np.ndarray]:
        """The initial weights; each is read when it is asked for."""
        return np.load(Path(self.folder) / WEIGHTS)  # type: ignore[no-any-return]


@dataclass(slots=True)
class Meter:
    """Measures a rank, from before its model is built."""

    base_gb: float = field(default_factory=lambda: memory_bytes("VmRSS") / 1e9)

    def measure(self, rank: int, task: Task, step: Callable[[int], float | None], phases: Callable[[], object] = dict) -> None:
        """Run and time the steps. `step(i)` gives the loss of step i (of a replica: its share's), None where it is not known here."""
        forget_peak()
        losses = [step(i) for i in range(task.warmup)]
        wall, cpu = time.perf_counter(), time.process_time()
        losses += [step(task.warmup + i) for i in range(task.steps)]
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        result = {
            "rank": rank,
            "tokens_s": GLOBAL_BATCH * SEQ_LEN * task.steps / wall_s,
            "cpu_s": cpu_s / task.steps,
            "peak_gb": memory_bytes("VmHWM") / 1e9,
            "base_gb": self.base_gb,
            "losses": losses,
            "phases": phases(),
        }
        # One write: ranks share the pipe, and a line must not be torn.
        os.write(1, f"\n{MARK}{json.dumps(result)}\n".encode())


def memory_bytes(name: str) -> int:
    """A figure of this process's memory from proc(5): VmRSS (resident now), VmHWM (its peak), VmData (anonymous, mapped)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = (text for text in status.splitlines() if text.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Let the peak of resident memory begin again at what is resident now."""
    Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
