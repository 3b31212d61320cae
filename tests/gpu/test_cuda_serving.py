"""On a GPU: the serving form gives the training form's logits, op by op, by flashinfer, and by captured graphs."""

from importlib.util import find_spec

import pytest
import torch

from rayplane.model.cache import cache_spec, heads_of, make_cache
from rayplane.model.lowered import Capacity, LoweredChunk
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.train.threads import run_ranks
from tests.model.serving import Sequences, build, cut, random_tensors

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FLASH = find_spec("flashinfer") is not None
SPEC = ModelSpec(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=64, mlp=192, vocab=100, init_std=0.1, tied=True)
LENGTHS = (19, 7, 33)
WORK = [[(0, 18), (1, 6), (2, 20)], [(2, 12)], [(0, 1), (1, 1), (2, 1)]]
"""The last is a decode step of three: with flashinfer a graph of four."""


def tokens():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(100, (n,), generator=generator).tolist() for n in LENGTHS]


def served(dtype, kv="auto"):
    """Logits of the last token of each sequence, twice: a graph is captured once and replayed."""

    def body(mesh):
        chunk, place = build(SPEC, random_tensors(SPEC), mesh, dtype)
        caches = make_cache(cache_spec(kv, 16, dtype), heads_of(SPEC, 1, 0), 2, 32, mesh.device)
        model = LoweredChunk(chunk.to(mesh.device), SPEC, place, caches, Capacity(64, 8, 128), None)
        out = []
        for _ in range(2):
            sequences = Sequences(tokens(), 16, 31)  # the last block is the graphs' own
            for work in WORK:
                logits = model.forward(sequences.step(work, all_rows=False))
            out.append(logits.cpu().clone())
        return out, model._graphs is not None

    return run_ranks(cut(SPEC, Layout()), body, device="cuda")[0]


def trained(dtype):
    def body(mesh):
        chunk, _ = build(SPEC, random_tensors(SPEC), mesh, dtype)
        chunk = chunk.to(mesh.device)
        with torch.no_grad():
            rows = [chunk(torch.tensor([t], device=mesh.device), 1, len(t))[-1:] for t in tokens()]
            return chunk.head.logits(torch.cat(rows)).float().cpu()

    return run_ranks(cut(SPEC, Layout()), body, device="cuda")[0]


def test_fp32_serves_what_was_trained():
    torch.backends.cuda.matmul.allow_tf32 = False
    (first, second), graphed = served(torch.float32)
    assert not graphed
    torch.testing.assert_close(first, trained(torch.float32), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second, first)


@pytest.mark.parametrize("kv", ["auto", "int8", "fp8"])
def test_bf16_is_near(kv):
    right = trained(torch.bfloat16)
    (first, second), graphed = served(torch.bfloat16, kv)
    assert graphed == (FLASH and kv == "auto")
    for logits in (first, second):
        assert (logits - right).norm() / right.norm() < (0.1 if kv == "fp8" else 0.03)
