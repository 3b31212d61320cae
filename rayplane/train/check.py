"""Does a layout compute what one device computes? A shrunken form of the job's model answers in seconds, on this machine.

    job's model and layout ──shrink──▶ one step under the layout, ranks as threads ─┐
                                  └──▶ one step on one device ─────────────────────┴─▶ loss, gradient norm, every gradient by name

What makes layouts go wrong is kept: heads and KV heads that do not divide, uneven stages, the schedule, a last microbatch that is
smaller, sp, cp, ZeRO, recomputation, tied weights, masks of documents and windows. Widths, depth, vocabulary and degrees beyond a few
are not.
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


def compare(model: ModelSpec, layout: Layout, global_batch: int, document_mask: bool) -> Comparison:
    """Run the shrunken job under the layout and on one device."""
    small, spec = shrunk_layout(layout), model
    spec = shrunk_model(model, small)
    per_round = small.dp * small.micro_batch
    samples = per_round * max(1, min(global_batch // (layout.dp * layout.micro_batch), 2 * small.pp))
    if global_batch % (layout.dp * layout.micro_batch) and samples > small.dp:
        samples -= 1
    with tempfile.TemporaryDirectory() as folder:
        job = _job(Path(folder), samples, 8 * small.cp + 3, document_mask)
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
    islands = 1 < layout.shard < layout.dp * layout.cp
    if islands and degrees["cp"] == 1:
        # Two ranks share, and two groups of them hold copies.
        degrees["dp"] = 4
    for axis in ("tp", "pp"):
        while math.prod(degrees.values()) > MAX_RANKS and degrees[axis] > 2:
            degrees[axis] -= 1
    small = replace(layout, **degrees, micro_batch=min(layout.micro_batch, 2), boundaries=())
    # A chunk has two layers at most: one that computes again, and one that does not.
    small = replace(small, recompute_layers=min(layout.recompute_layers, 1), shard=2 if islands else int(layout.shard == 1))
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
        window=min(model.window, 5),
    )


def _job(folder: Path, samples: int, seq_len: int, document_mask: bool) -> TrainSection:
    """Over short documents of characters that the small vocabulary has."""
    random = np.random.default_rng(0)
    documents = [bytes(random.integers(32, 61, size, dtype=np.uint8)).decode() for size in random.integers(1, 2 * seq_len, 200)]
    (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    return TrainSection.model_validate(
        {
            "data": {"path": [str(folder / "text.jsonl")], "seq_len": seq_len, "document_mask": document_mask},
            "steps": 1,
            "global_batch": samples,
            "checkpoint": {"dir": str(folder)},
        }
    )


def _run(spec: ModelSpec, layout: Layout, job: TrainSection) -> Outcome:
    dataset = open_dataset(job.data, Path(), Path(job.checkpoint.dir) / "data", spec.vocab)

    def body(mesh: Mesh) -> tuple[float, float, list[tuple[str, tuple[slice, ...], torch.Tensor]]]:
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
    """Answer {"model", "layout", "global_batch", "document_mask"} on stdin with the comparison as JSON."""
    asked = json.load(sys.stdin)
    model = ModelSpec(**{**asked["model"], "rope": Rope(**asked["model"]["rope"])})
    layout = Layout(**{**asked["layout"], "boundaries": tuple(asked["layout"]["boundaries"])})
    result = compare(model, layout, asked["global_batch"], asked["document_mask"])
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
