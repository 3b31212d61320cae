"""Every family gives the logits, the loss and the gradients that `transformers` gives, on one device and cut over tp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rayplane.comm.mesh import Mesh
from rayplane.model.layers import Place
from rayplane.model.names import hf_names
from rayplane.model.parameter import GradWork
from rayplane.model.transformer import ModelChunk
from rayplane.model.weights import WeightSource, open_weights
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.sharding import Chunk, is_shared
from rayplane.spec.source import load_model
from rayplane.train.threads import run_ranks
from tests.model.families import FAMILIES, VOCAB, save

TOLERANCE = 1e-4
BATCH, SEQ = 3, 12
LAYOUTS = {"serial": Layout(), "tp2": Layout(tp=2), "tp2-sp": Layout(tp=2, sp=True), "recompute": Layout(tp=2, recompute="full")}
TOKENS = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(3))
IDS, TARGETS = TOKENS[:, :-1].contiguous(), TOKENS[:, 1:].flatten()
Held = tuple[str, Chunk, torch.Tensor, bool]
"""Tensor, box, its gradient on one rank, and whether that is only a part of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one batch gives; gradients by the names of `ModelSpec.tensors()`."""

    logits: torch.Tensor
    loss: float
    grads: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Reference:
    """A model that `transformers` has saved, opened here, and what it answers there."""

    spec: ModelSpec
    source: WeightSource
    answer: Answer


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Each family's, made once."""
    known: dict[str, Reference] = {}

    def get(family: str) -> Reference:
        if family not in known:
            folder: Path = tmp_path_factory.mktemp(family)
            model = save(family, folder)
            spec = load_model(ModelSection(path=str(folder)))
            known[family] = Reference(spec, open_weights(folder, spec), theirs(model, spec))
        return known[family]

    return get


def theirs(model: torch.nn.Module, spec: ModelSpec) -> Answer:
    """The answer of a model of `transformers`."""
    logits = model(input_ids=IDS).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, TARGETS)
    loss.backward()
    stored = {name: p.grad for name, p in model.named_parameters()}
    names, grads = hf_names(spec), {}
    for tensor in spec.tensors():
        at = names.stored(tensor.name)
        whole = stored[at.name].t() if at.transposed else stored[at.name]
        grads[tensor.name] = whole.chunk(at.parts)[at.part]
    return Answer(logits.detach(), loss.item(), grads)


def ours(reference: Reference, layout: Layout) -> list[Answer]:
    """The answer as each rank knows it; a gradient is summed over the ranks that have a part of it each, and else equal on all."""

    def body(mesh: Mesh) -> tuple[torch.Tensor, float, list[Held]]:
        place = Place(mesh.tp, mesh.cp, GradWork(defer=True), torch.float32, layout.sp, recompute=layout.recompute)
        chunk = ModelChunk(place, reference.spec, range(reference.spec.layers), first=True, last=True)
        for weight in chunk.weights():
            weight.main_grad = torch.zeros_like(weight)
            for part, view in weight.views(weight.data):
                view.copy_(reference.source.read(part.tensor.name, part.chunk))
        hidden = chunk(IDS, BATCH, SEQ)
        loss = chunk.head.loss(hidden, TARGETS, 1.0 / TARGETS.numel())
        loss.backward()
        place.grads.run()
        held = [
            (part.tensor.name, part.chunk, view, weight.partial or is_shared(part.tensor, layout.tp))
            for weight in chunk.weights()
            for part, view in weight.views(weight.main_grad)
        ]
        with torch.no_grad():
            logits = chunk.head.logits(place.whole(chunk(IDS, BATCH, SEQ), place.rows(IDS.numel())))
        return logits, loss.item(), held

    results = run_ranks(layout, body)
    grads = joined(reference.spec, [held for _, _, held in results])
    return [Answer(logits, loss, grads) for logits, loss, _ in results]


def joined(spec: ModelSpec, ranks: list[list[Held]]) -> dict[str, torch.Tensor]:
    """Whole gradients from those of every rank."""
    grads = {t.name: torch.zeros(t.shape) for t in spec.tensors()}
    for name, chunk, grad, is_part in (held for rank in ranks for held in rank):
        box = grads[name][chunk.slices]
        if not is_part and box.any():
            torch.testing.assert_close(box, grad)
        else:
            box += grad
    return grads


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_transformers_computes(family, layout, references):
    reference = references(family)
    for answer in ours(reference, LAYOUTS[layout]):
        torch.testing.assert_close(answer.logits, reference.answer.logits, rtol=TOLERANCE, atol=TOLERANCE)
        assert answer.loss == pytest.approx(reference.answer.loss, rel=TOLERANCE)
        assert_same_gradients(answer.grads, reference.answer.grads)


def assert_same_gradients(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Within TOLERANCE of a tensor's largest element; the gradient of a key bias is all rounding, so there is a floor."""
    assert got.keys() == expected.keys()
    floor = 1e-3 * max(g.abs().max().item() for g in expected.values())
    for name, gradient in expected.items():
        scale = max(gradient.abs().max().item(), floor)
        assert (got[name] - gradient).abs().max().item() <= TOLERANCE * scale, name


@pytest.mark.parametrize("family", ["mistral-window", "qwen2-window"])
def test_the_windows_are_shorter_than_the_sequences_here(family, references):
    assert 0 < references(family).spec.window < SEQ
