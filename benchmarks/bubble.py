"""Bubbles as the executor has them, beside those that the planner plays: python benchmarks/bubble.py [--json] [--microbatches 8]

Four ranks run real steps: their Action lists, their sends and receives over gloo, their optimizer. Only the compute of the model chunks
is replaced by sleeping, so that four ranks do not contend for this machine's cores, and what is left is order and waiting. Steps are
recorded as train.trace records them; the shorter of two counts, for what else the machine does only adds to them. `timeline.play`
gets the same lists and the seconds slept.

even     a chunk sleeps 24 ms in F, 28 ms in I, 20 ms in W
uneven   the first chunk half as long, the last half as long again, as under an embedding and a head
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd import Function

from rayplane.cli.timelines import measured
from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import Mesh
from rayplane.model.parameter import GradWork, Weight
from rayplane.model.transformer import ModelChunk
from rayplane.plan.step.draft import action_cost
from rayplane.plan.step.pipe import Pipe, stages_of
from rayplane.plan.step.timeline import Timeline, play
from rayplane.spec.job import CheckpointSection, DataSection, TraceSection, TrainSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.passes import build
from rayplane.spec.report import RankTrace
from rayplane.telemetry.trace import read, write
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank
from rayplane.train.threads import run_ranks
from rayplane.train.trace import Tracer

Tensor = torch.Tensor
STAGES, SEQ_LEN, HIDDEN = 4, 8, 8
FORWARD_S, INPUT_S, WEIGHT_S = 0.024, 0.028, 0.020
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1, "zb-h2": 1, "zbv": 2}
"""Chunks a stage by schedule."""
RECORDED = TraceSection(first=2, steps=2)


@dataclass(frozen=True, slots=True)
class Naps:
    """Seconds that stand for a chunk's compute, and where to leave the part that a schedule may put off."""

    forward_s: float
    input_s: float
    weight_s: float
    work: GradWork
    weight: Weight


class Asleep(Function):
    """A chunk that does nothing, for as long as it should."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, naps: Naps) -> Tensor:  # ids [B, S] or [n, H] -> [n, H]
        ctx.naps, ctx.needed = naps, x.is_floating_point()
        time.sleep(naps.forward_s)
        return x.clone() if ctx.needed else torch.ones(x.numel(), HIDDEN)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        time.sleep(ctx.naps.input_s)
        ctx.naps.work.push(ctx.naps.weight, lambda _: time.sleep(ctx.naps.weight_s))
        return grad.clone() if ctx.needed else None, None, None


def pipe_of(layout: Layout, uneven: bool) -> Pipe:
    """The seconds of each chunk."""
    shares = [1.0] * layout.num_chunks
    if uneven:
        shares[0] *= 0.5
        shares[-1] *= 1.5
    forward, inputs, weights = (tuple(s * share for share in shares) for s in (FORWARD_S, INPUT_S, WEIGHT_S))
    chunks = layout.num_chunks
    return Pipe(stages_of(layout), forward, inputs, weights, p2p_s=(0.0,) * (chunks - 1), reduce_s=(0.0,) * chunks)


def run(layout: Layout, pipe: Pipe, num_microbatches: int) -> Timeline:
    """The shortest of some steps of a training job, asleep and recorded but for the first."""
    model = ModelSpec(layers=layout.num_chunks, hidden=HIDDEN, heads=2, kv_heads=2, head_dim=4, mlp=8, vocab=16)
    with tempfile.TemporaryDirectory() as folder:
        job = job_in(Path(folder), num_microbatches)
        run_ranks(layout, partial(run_rank, model, job, pipe))
        recorded, _ = read(Path(folder))
    return min((measured(step).timeline for step in recorded), key=lambda timeline: max(timeline.compute_end_s))


def job_in(folder: Path, global_batch: int) -> TrainSection:
    """A training section over random tokens."""
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 16, 4096).astype(np.uint16))
    return TrainSection(
        data=DataSection(path=[{"path": str(folder / "tokens.npy")}], seq_len=SEQ_LEN),
        steps=RECORDED.first + RECORDED.steps,
        global_batch=global_batch,
        checkpoint=CheckpointSection(dir=str(folder)),
        trace=RECORDED,
    )


def run_rank(model: ModelSpec, job: TrainSection, pipe: Pipe, mesh: Mesh) -> None:
    """One rank's steps."""
    folder = Path(job.checkpoint.dir)
    rank = TrainRank(model, job, mesh, open_dataset(job.data, Path(), folder / "data", model.vocab))
    tracer = Tracer(job.trace, mesh, folder)
    rank.step(drain=False)
    for c, chunk in rank.chunks.items():
        put_to_sleep(chunk, Naps(pipe.forward_s[c], pipe.input_s[c], pipe.weight_s[c], chunk._place.grads, chunk.weights()[0]))
    for step in range(RECORDED.first, RECORDED.first + RECORDED.steps):
        tracer.before(step)
        rank.step(drain=False)
        tracer.after(step)


def put_to_sleep(chunk: ModelChunk, naps: Naps) -> None:
    """Replace the chunk's compute; its head stays, for the loss begins the backward."""
    chunk.forward = lambda x, *_: Asleep.apply(x, naps.weight, naps)


def compare(schedule: str, num_microbatches: int, uneven: bool) -> tuple[Timeline, Timeline]:
    """(played, measured) step of a schedule on four ranks."""
    vpp = SCHEDULES[schedule]
    layout = Layout(pp=STAGES, schedule=schedule, vpp=vpp, boundaries=(1,) * (STAGES * vpp))
    pipe = pipe_of(layout, uneven)
    played = play(build(layout, num_microbatches), action_cost(pipe, (1.0,) * num_microbatches, 0.0))
    return played, run(layout, pipe, num_microbatches)


def recording_us() -> dict[str, float]:
    """What a trace costs: naming an Action while nothing is recorded, and a stretch from its stamp to the file."""
    clock, times = PhaseClock(), 5000
    begin = time.perf_counter()
    for _ in range(times):
        clock.about("F0.0")
    off_s = time.perf_counter() - begin
    clock.record()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        for _ in range(times):
            clock.about("F0.0")
        clock.take()
        stretches = clock.recorded()
        write(Path(folder), RankTrace(0, 1, Layout(), "here", 0.0, stretches))
        on_s = time.perf_counter() - begin
    return {"off_per_action": round(1e6 * off_s / times, 2), "on_per_stretch": round(1e6 * on_s / len(stretches), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--microbatches", type=int, default=8)
    args = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    print(f"{'':12} {'':7} {'bubble':>7} {'':9} {'':7} {'pipe, s':>7}")
    print(f"{'schedule':12} {'':7} {'played':>7} {'measured':>9} {'points':>7} {'played':>7} {'measured':>9}")
    for schedule in SCHEDULES:
        for name in ("even", "uneven"):
            played, seen = compare(schedule, args.microbatches, name == "uneven")
            points, played_s, seen_s = 100 * (seen.bubble - played.bubble), max(played.compute_end_s), max(seen.compute_end_s)
            figures = f"{played.bubble:7.1%} {seen.bubble:9.1%} {points:+7.2f} {played_s:7.3f} {seen_s:9.3f}"
            print(f"{schedule:12} {name:7} {figures}", flush=True)
            results.setdefault(schedule, {})[name] = {
                "played": round(played.bubble, 4),
                "measured": round(seen.bubble, 4),
                "points": round(points, 2),
                "played_pipe_s": round(played_s, 4),
                "measured_pipe_s": round(seen_s, 4),
            }
    cost = recording_us()
    print(
        f"recording: {cost['off_per_action']} µs an Action while off, {cost['on_per_stretch']} µs a stretch with its share of the file"
    )
    if args.json:
        results["recording_us"] = cost
        print(json.dumps(results))


if __name__ == "__main__":
    main()
