"""What copies of the state in memory cost a job that trains: a model of this machine's size, a copy every N steps beside the steps.

    python benchmarks/memory_copies.py [--every N] [--steps N] [--json]

held up      what a copy keeps a step waiting for: the state is copied on the host while nothing else goes on
beside       from then until every rank has it: checksums, the file, the manifest
step         median wall time of a step, without copies and with them, both kinds in turn; the copies of N steps are in it
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from rayplane.comm.mesh import Mesh
from rayplane.spec.job import CheckpointSection, DataSection, TrainSection
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.load import load_model
from rayplane.spec.model_section import ModelSection
from rayplane.train.data import open_dataset
from rayplane.train.memory import Memory
from rayplane.train.ram_folder import RamFolder, remove_folder
from rayplane.train.rank import TrainRank
from rayplane.train.threads import run_ranks

SPEC = load_model(ModelSection(preset="reference"))
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, and the size of a copy over all ranks."""

    every: int
    state_bytes: int
    held_up_s: float
    beside_s: float
    step_s: float
    with_copies_s: float


def measure(every: int, steps: int, folder: Path) -> Cost:
    """One rank, so that its two threads have a core each."""
    train = _section(folder, 2 * ROUNDS * steps)
    layout = Layout(micro_batch=train.global_batch)

    def body(mesh: Mesh) -> Cost:
        rank = TrainRank(SPEC, train, mesh, open_dataset(train.data, Path(), folder / "data", SPEC.vocab))
        ram = RamFolder.open(Path("/dev/shm") / f"rayplane-{folder.name}", folder / ".run.lock")
        memory = Memory.open(ram, SPEC, mesh, rank.optimizer.tensors())
        held, beside, plain, copied = [], [], [], []
        rank.step(drain=False)
        for _ in range(ROUNDS):
            plain.append(_round(rank, None, every, steps, held, beside))
            copied.append(_round(rank, memory, every, steps, held, beside))
        size = sum(file.stat().st_size for file in ram.path.rglob("*.safetensors"))
        remove_folder(ram.path)
        return Cost(every, size, median(held), median(beside), median(plain), median(copied))

    return run_ranks(replace(layout, boundaries=even_boundaries(SPEC.layers, 1)), body)[0]


def _round(rank: TrainRank, memory: Memory | None, every: int, steps: int, held: list[float], beside: list[float]) -> float:
    """Seconds per step of some steps, with what is left of the last copy after them."""
    began_s, copying = time.perf_counter(), None
    for number in range(1, steps + 1):
        rank.step(drain=False)
        if memory and number % every == 0:
            assert not (copying and copying.result())
            copy_s = time.perf_counter()
            copying = memory.start_save(rank.progress, rank.optimizer.tensors())
            held.append(time.perf_counter() - copy_s)
            _note_end(copying, beside)
    assert not (copying and copying.result())
    return (time.perf_counter() - began_s) / steps


def _note_end(copying: Future[str], beside: list[float]) -> None:
    since_s = time.perf_counter()
    copying.add_done_callback(lambda _: beside.append(time.perf_counter() - since_s))


def _section(folder: Path, steps: int) -> TrainSection:
    path = folder / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, SPEC.vocab, 200_000).astype(np.uint16))
    return TrainSection(
        data=DataSection(path=[str(path)], seq_len=128),
        steps=steps + 1,
        global_batch=8,
        checkpoint=CheckpointSection(dir=str(folder / "run")),
    )


def main() -> None:
    """Print the cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cost = measure(given.every, given.steps, Path(folder))
    figures = {name: getattr(cost, name) for name in Cost.__dataclass_fields__}
    figures["held_up_share"] = cost.held_up_s / (cost.every * cost.step_s)
    if given.json:
        print(json.dumps(figures))
        return
    print(f"state {cost.state_bytes / 1e6:.1f} MB, a copy every {cost.every} steps")
    print(f"held up {1e3 * cost.held_up_s:.2f} ms a copy, {100 * figures['held_up_share']:.2f}% of {cost.every} steps")
    print(f"beside  {1e3 * cost.beside_s:.2f} ms a copy")
    print(f"step    {1e3 * cost.step_s:.1f} ms without, {1e3 * cost.with_copies_s:.1f} ms with copies")


if __name__ == "__main__":
    main()
