"""A sequence too long for one rank's memory budget, on two: python benchmarks/long_context.py [--json]

    cp 1, unlimited      its peak is beyond the budget; its losses are what the others must have
    cp 1, limited        fails to allocate
    cp 2 ring, limited   within the budget, on each of two ranks
    cp 2 gather, limited within the budget, on each of two ranks

The budget is what a rank may grow by once its model is built (RLIMIT_DATA); peaks are growth of resident memory over the steps. `kept`
is what forward keeps for backward, counted tensor by tensor: activations, keys and values.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from reference import forget_peak, memory_bytes

from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import connect
from rayplane.spec.job import CheckpointSection, DataSection, OptimizerSection, SourceSection, TrainSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank

SPEC = ModelSpec(layers=8, hidden=128, heads=4, kv_heads=2, head_dim=32, mlp=344, vocab=256, name="long")
SEQ_LEN, STEPS = 8192, 2
BUDGET_BYTES = 550 * 10**6
TOLERANCE = 1e-5
TIMEOUT_S = 170.0
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to train on the sequence. `limited`: under the budget."""

    cp: int
    method: str
    limited: bool

    @property
    def name(self) -> str:
        """The trial in words."""
        return f"cp {self.cp}{f' {self.method}' if self.cp > 1 else ''}, {'limited' if self.limited else 'unlimited'}"


TRIALS = (Trial(1, "ring", False), Trial(1, "ring", True), Trial(2, "ring", True), Trial(2, "gather", True))


@contextmanager
def kept_for_backward(sizes: dict[int, int]) -> Iterator[None]:
    """Fill `sizes` with the bytes of each memory that forward keeps, by its address."""

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield


def rank_main(answer: Connection, trial: Trial, rank: int, port: int, folder: str) -> None:
    """One rank, as a process."""
    torch.set_num_threads(1)
    layout = Layout(cp=trial.cp, cp_method=trial.method, boundaries=(SPEC.layers,))
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(seconds=60))
    mesh = connect(layout, rank, store, torch.device("cpu"), 60.0, PhaseClock())
    section = TrainSection(
        data=DataSection(path=[SourceSection(path=str(Path(folder) / "tokens.npy"))], seq_len=SEQ_LEN),
        steps=100,
        global_batch=1,
        optimizer=OptimizerSection(lr=1e-3),
        checkpoint=CheckpointSection(dir=folder),
    )
    train = TrainRank(SPEC, section, mesh, open_dataset(section.data, Path(), Path(folder) / "data", SPEC.vocab))
    base = memory_bytes("VmRSS")
    forget_peak()
    if trial.limited:
        limit = memory_bytes("VmData") + BUDGET_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    report: Report = {}
    try:
        report["losses"] = [train.step(drain=False)[0].loss for _ in range(STEPS)]
        report["peak_mb"] = round((memory_bytes("VmHWM") - base) / 1e6, 1)
        sizes: dict[int, int] = {}
        with kept_for_backward(sizes):
            train.step(drain=False)
        report["kept_mb"] = round(sum(sizes.values()) / 1e6, 1)
    except (RuntimeError, MemoryError) as error:
        report["failed"] = str(error).splitlines()[0]
    answer.send(report)
    mesh.close()


def run(trial: Trial, folder: str) -> Report:
    """All ranks of a trial: the first failure, or losses, and the fullest rank's peak."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(trial.cp)]
    ranks = [spawn.Process(target=rank_main, args=(pipes[r][1], trial, r, port, folder)) for r in range(trial.cp)]
    for process in ranks:
        process.start()
    reports = [receive.recv() if receive.poll(TIMEOUT_S) else {"failed": "no answer"} for receive, _ in pipes]
    for process in ranks:
        process.join()
    failed = [r["failed"] for r in reports if "failed" in r]
    if failed:
        return {"failed": failed[0]}
    return {"losses": reports[0]["losses"], **{k: max(r[k] for r in reports) for k in ("peak_mb", "kept_mb")}}


def verdict(results: dict[str, Report]) -> dict[str, Any]:
    """What was to be shown, in numbers and as one truth."""
    alone, refused, *shared = (results[t.name] for t in TRIALS)
    budget = BUDGET_BYTES / 1e6
    done = [r for r in shared if "failed" not in r]
    differences = [abs(a - b) for r in done for a, b in zip(r["losses"], alone["losses"], strict=True)]
    shown = len(done) == len(shared) and "failed" in refused and alone["peak_mb"] > budget
    return {
        "budget_mb": budget,
        "largest_loss_difference": max(differences, default=None),
        "peak_ratio": [round(r["peak_mb"] / alone["peak_mb"], 3) for r in done],
        "kept_ratio": [round(r["kept_mb"] / alone["kept_mb"], 3) for r in done],
        "shown": shown and all(r["peak_mb"] <= budget for r in done) and max(differences) <= TOLERANCE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    results: dict[str, Report] = {}
    print(f"{SEQ_LEN} tokens, {SPEC.num_params / 1e6:.2f} M parameters, fp32; budget {BUDGET_BYTES / 1e6:.0f} MB a rank")
    with tempfile.TemporaryDirectory() as folder:
        tokens = np.random.default_rng(0).integers(0, SPEC.vocab, 4 * SEQ_LEN + 1)
        np.save(Path(folder) / "tokens.npy", tokens.astype(np.uint16))
        for trial in TRIALS:
            r = results[trial.name] = run(trial, folder)
            words = r.get("failed") or f"peak {r['peak_mb']} MB, kept {r['kept_mb']} MB, losses {r['losses']}"
            print(f"{trial.name:22} {words}", flush=True)
    end = verdict(results)
    print(f"cp 2 beside cp 1: peak {end['peak_ratio']}, kept {end['kept_ratio']}; shown: {end['shown']}")
    if args.json:
        trials = [{**asdict(t), **results[t.name]} for t in TRIALS]
        print(json.dumps({"seq_len": SEQ_LEN, "trials": trials, **end}))
    raise SystemExit(not end["shown"])


if __name__ == "__main__":
    main()
