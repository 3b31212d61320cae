"""The reference model of the benchmarks, and what a rank of either system prints: one JSON line with its speed, CPU time and memory."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable

import numpy as np

from rayplane.spec.model import ModelSpec

SPEC = ModelSpec(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, mlp=1376, vocab=8192, name="reference")
SEQ_LEN, GLOBAL_BATCH, NUM_SAMPLES = 256, 16, 256
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
MARK = "rank-result "


def tokens() -> np.ndarray:
    """A fixed random token array, the same for every system."""
    return np.random.default_rng(0).integers(0, SPEC.vocab, NUM_SAMPLES * SEQ_LEN + 1).astype(np.uint16)


def measure(rank: int, step: Callable[[int], float], warmup: int, steps: int) -> None:
    """Time `steps` steps after `warmup` untimed ones; `step(i)` returns the loss of step i (any number where it is not known)."""
    losses = [step(i) for i in range(warmup)]
    wall, cpu = time.perf_counter(), time.process_time()
    losses += [step(warmup + i) for i in range(steps)]
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    tokens_s = GLOBAL_BATCH * SEQ_LEN * steps / wall_s
    result = {"rank": rank, "tokens_s": tokens_s, "cpu_s": cpu_s, "peak_gb": peak_gb, "losses": losses}
    # One write: ranks share the pipe, and a line must not be torn.
    os.write(1, f"{MARK}{json.dumps(result)}\n".encode())
