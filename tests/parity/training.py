"""A few training steps of a tiny model under a layout, with ranks as threads, and its whole weights afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from rayplane.comm.mesh import Mesh
from rayplane.spec.job import CheckpointSection, DataSection, OptimizerSection, TrainSection
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.train.checkpoint import Store
from rayplane.train.data import open_dataset
from rayplane.train.rank import TrainRank
from rayplane.train.threads import run_ranks
from tests.train.test_indexed import write

VOCAB, SEQ_LEN = 61, 12


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave: per step loss and gradient norm, the held-out loss before it, and every whole tensor after it."""

    losses: list[float]
    norms: list[float]
    holdout: float
    tensors: dict[str, torch.Tensor]


def tiny(**numbers: object) -> ModelSpec:
    """A model whose numbers do not divide well: 9 heads, 3 KV heads, 50 wide, 61 tokens."""
    defaults = {"layers": 4, "hidden": 24, "heads": 9, "kv_heads": 3, "head_dim": 8, "mlp": 50, "vocab": VOCAB, "init_std": 0.1}
    return ModelSpec(**{**defaults, **numbers})  # type: ignore[arg-type]


def tokens() -> npt.NDArray[np.uint16]:
    """Random tokens."""
    return np.random.default_rng(0).integers(0, VOCAB, 4000).astype(np.uint16)


def starts() -> list[int]:
    """Where documents of 1 to 20 tokens start in them, most of them short."""
    return [0, *np.cumsum(np.random.default_rng(1).choice([1, 1, 2, 3, 5, 8, 20], 1000)).tolist()]


def write_documents(path: Path, tokens: npt.NDArray[np.uint16], starts: Sequence[int]) -> None:
    """A Megatron .idx and its .bin, each document a sequence."""
    ends = [s for s in starts if s < len(tokens)] + [len(tokens)]
    write(path, [[tokens[a:b].tolist()] for a, b in pairwise(ends)])


def section(folder: Path, steps: int = 3, document_mask: bool = False, **changes: object) -> TrainSection:
    """A training section over a random token array, or over the documents in it."""
    path = folder / ("tokens.idx" if document_mask else "tokens.npy")
    if not path.exists() and document_mask:
        write_documents(path, tokens(), starts())
    elif not path.exists():
        np.save(path, tokens())
    return TrainSection(
        data=DataSection(path=[str(path)], seq_len=SEQ_LEN, holdout=0.1, holdout_samples=7, document_mask=document_mask),
        steps=steps,
        global_batch=8,
        # AdamW's step does not depend on the size of a gradient but by eps: with a tiny eps, rounding decides the sign of a step.
        optimizer=OptimizerSection(lr=1e-3, clip=0.5, weight_decay=0.1, eps=1e-3),
        checkpoint=CheckpointSection(dir=str(folder / "run")),
    ).model_copy(update=changes)


def make_rank(spec: ModelSpec, train: TrainSection, mesh: Mesh) -> TrainRank:
    """A rank as the worker makes it."""
    dataset = open_dataset(train.data, Path(), Path(train.checkpoint.dir) / "data", spec.vocab)
    return TrainRank(spec, train, mesh, dataset)


def cut(spec: ModelSpec, layout: Layout) -> Layout:
    """The layout with boundaries, by layer count where it has none."""
    return replace(layout, boundaries=layout.boundaries or even_boundaries(spec.layers, layout.num_chunks))


def train(
    spec: ModelSpec, layout: Layout, train: TrainSection, before: Callable[[TrainRank], None] = lambda rank: None, device: str = "cpu"
) -> Run:
    """Run the section's steps; `before` may load a checkpoint. Tensors come back on the CPU."""

    def body(mesh: Mesh) -> tuple[Run, dict[str, list[tuple[tuple[slice, ...], torch.Tensor]]]]:
        rank = make_rank(spec, train, mesh)
        holdout = rank.evaluate()
        before(rank)
        reports = [rank.step(drain=False)[0] for _ in range(rank.progress.step, train.steps)]
        for gradients in rank._gradients.values():
            gradients.whole()
        pieces = [(p.name, p.part.chunk.slices, p.data.cpu().clone()) for p in rank.optimizer.tensors()]
        return Run([r.loss for r in reports], [r.grad_norm for r in reports], holdout, {}), pieces

    shapes = {t.name: t.shape for t in spec.tensors()}
    results = run_ranks(cut(spec, layout), body, device)
    tensors: dict[str, torch.Tensor] = {}
    for _, pieces in results:
        for name, slices, piece in pieces:
            whole = tensors.setdefault(name, torch.full(shapes[name.partition("/")[2]], torch.nan))
            known = whole[slices]
            # What several ranks hold must be equal on all of them, not only right on one.
            torch.testing.assert_close(
                torch.where(known.isnan(), piece, known), piece, rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}"
            )
            whole[slices] = piece
    first = results[0][0]
    for run, _ in results:
        assert (run.losses, run.norms, run.holdout) == (first.losses, first.norms, first.holdout), "ranks disagree"
    return replace(first, tensors=tensors)


def store(mesh: Mesh, spec: ModelSpec, train: TrainSection) -> Store:
    """The job's checkpoints."""
    return Store(Path(train.checkpoint.dir), train.checkpoint.keep, spec, mesh)


def assert_equal(got: Run, expected: Run, tolerance: float = 1e-5) -> None:
    """Losses, norms and every tensor within a relative tolerance.

    A tensor's difference is measured against its largest element, but at least against a thousandth of the largest element of its
    state: the gradient of a key bias is almost all rounding, since softmax does not see a shift of all keys.
    """
    torch.testing.assert_close(torch.tensor(got.losses), torch.tensor(expected.losses), rtol=tolerance, atol=0)
    torch.testing.assert_close(torch.tensor(got.norms), torch.tensor(expected.norms), rtol=tolerance, atol=0)
    torch.testing.assert_close(got.holdout, expected.holdout, rtol=tolerance, atol=0)
    assert got.tensors.keys() == expected.tensors.keys()
    largest: dict[str, float] = {}
    for name, tensor in expected.tensors.items():
        state = name.partition("/")[0]
        largest[state] = max(largest.get(state, 0.0), tensor.abs().max().item())
    for name, tensor in expected.tensors.items():
        scale = max(tensor.abs().max().item(), 1e-3 * largest[name.partition("/")[0]])
        difference = (got.tensors[name] - tensor).abs().max().item() / scale
        assert difference <= tolerance, f"{name}: {difference:.2e} of its largest element"
