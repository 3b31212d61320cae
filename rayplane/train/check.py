"""Does a layout compute what one device computes? A shrunken form of the job's model answers in seconds, on this machine.

    job's model and layout ──shrink──▶ one step under the layout, ranks as threads ─┐
                                  └──▶ one step on one device ─────────────────────┴─▶ loss, gradient norm, every gradient by name

What makes layouts go wrong is kept: heads and KV heads that do not divide, uneven stages, the schedule, a last microbatch that is
smaller, sp, cp, ZeRO, recomputation, tied weights. Widths, depth, vocabulary and degrees beyond a few are not.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from rayplane.comm.mesh import Mesh
from rayplane.spec.job import TrainSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec, Rope
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank
from rayplane.train.threads import run_ranks

MAX_DEGREE = {"dp": 2, "pp": 4, "cp": 2, "tp": 4}
MAX_RANKS = 16
TOLERANCE = 1e-4
"""Relative, in fp32; a gradient is measured against the largest element of its tensor, but at least a thousandth of the model's."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step of a layout."""

    loss: float
    norm: float
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The shrunken model and layout, and how far the layout is from one device: relative differences."""

    model: ModelSpec
    layout: Layout
    loss: float
    norm: float
    gradients: dict[str, float]

    @property
    def parts(self) -> list[tuple[str, float]]:
        """What differs by more than the tolerance, worst first."""
        every = {"loss": self.loss, "gradient norm": self.norm, **self.gradients}
        return sorted(((n, d) for n, d in every.items() if not d <= TOLERANCE), key=lambda item: -item[1])


def compare(model: ModelSpec, layout: Layout, global_batch: int) -> Comparison:
    """Run the shrunken job under the layout and on one device."""
    small, spec = shrunk_layout(layout), model
    spec = shrunk_model(model, small)
    per_round = small.dp * small.micro_batch
    samples = per_round * max(1, min(global_batch // (layout.dp * layout.micro_batch), 2 * small.pp))
    if global_batch % (layout.dp * layout.micro_batch) and samples > small.dp:
        samples -= 1
    with tempfile.TemporaryDirectory() as folder:
        job = _job(Path(folder), spec, samples, 8 * small.cp + 3)
        ours = _run(spec, small, job)
        serial = _run(spec, Layout(micro_batch=samples, boundaries=(spec.layers,)), job)
    largest = max(g.abs().max().item() for g in serial.gradients.values())
    differences = {
        name: (ours.gradients[name] - whole).abs().max().item() / max(whole.abs().max().item(), 1e-3 * largest)
        for name, whole in serial.gradients.items()
    }
    loss, norm = abs(ours.loss / serial.loss - 1), abs(ours.norm / serial.norm - 1)
    return Comparison(spec, small, loss, norm, differences)


def shrunk_layout(layout: Layout) -> Layout:
    """The same layout with fewer ranks and layers."""
    degrees = {axis: min(getattr(layout, axis), most) for axis, most in MAX_DEGREE.items()}
    for axis in ("tp", "pp"):
        while math.prod(degrees.values()) > MAX_RANKS and degrees[axis] > 2:
            degrees[axis] -= 1
    small = replace(layout, **degrees, micro_batch=min(layout.micro_batch, 2), boundaries=())
    kept = layout.boundaries if small.pp == layout.pp else ()
    boundaries = tuple(min(n, 2) for n in kept) or (1,) * small.num_chunks
    return replace(small, boundaries=boundaries if sum(boundaries) else (1, *boundaries[1:]))


def shrunk_model(model: ModelSpec, layout: Layout) -> ModelSpec:
    """The same architecture, small: its ratio of heads to KV heads and their remainders over tp stay."""
    kv_heads = min(model.kv_heads, max(3, layout.tp + model.kv_heads % layout.tp))
    heads = kv_heads * model.group
    return replace(
        model,
        layers=layout.num_layers,
        hidden=24,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=8,
        mlp=50,
        vocab=61,
        max_seq=64,
        init_std=0.1,
    )


def _job(folder: Path, spec: ModelSpec, samples: int, seq_len: int) -> TrainSection:
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, spec.vocab, 4096).astype(np.uint16))
    return TrainSection.model_validate(
        {
            "data": {"path": [str(folder / "tokens.npy")], "seq_len": seq_len},
            "steps": 1,
            "global_batch": samples,
            "checkpoint": {"dir": str(folder)},
        }
    )


def _run(spec: ModelSpec, layout: Layout, job: TrainSection) -> Outcome:
    def body(mesh: Mesh) -> tuple[float, float, list[tuple[str, tuple[slice, ...], torch.Tensor]]]:
        dataset = open_dataset(job.data, Path(), Path(job.checkpoint.dir) / "data", spec.vocab)
        rank = TrainRank(spec, job, mesh, dataset)
        report, _ = rank.step(drain=False)
        return report.loss, report.grad_norm, [(p.name, p.part.chunk.slices, p.data.clone()) for p in rank.optimizer.gradients()]

    results = run_ranks(layout, body)
    gradients = {t.name: torch.full(t.shape, torch.nan) for t in spec.tensors()}
    for _, _, pieces in results:
        for name, slices, piece in pieces:
            gradients[name][slices] = piece
    return Outcome(results[0][0], results[0][1], gradients)


def main() -> None:
    """Answer {"model", "layout", "global_batch"} on stdin with the comparison as JSON."""
    asked = json.load(sys.stdin)
    model = ModelSpec(**{**asked["model"], "rope": Rope(**asked["model"]["rope"])})
    layout = Layout(**{**asked["layout"], "boundaries": tuple(asked["layout"]["boundaries"])})
    result = compare(model, layout, asked["global_batch"])
    answer = {
        "layout": str(result.layout),
        "ranks": result.layout.size,
        "layers": result.model.layers,
        "equal": not result.parts,
        "tolerance": TOLERANCE,
        "loss": result.loss,
        "norm": result.norm,
        "gradients": result.gradients,
        "parts": result.parts,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
