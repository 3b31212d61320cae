"""The serving form gives the logits of the training form, however tokens come in steps and ranks cut the model."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from rayplane.kernels.native import load
from rayplane.model.lowered import Capacity
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec, Rope
from rayplane.train.threads import run_ranks
from tests.model.serving import Sequences, Setup, build, cut, lower, random_tensors, run_steps

BASE = {"layers": 3, "hidden": 24, "heads": 9, "kv_heads": 3, "head_dim": 8, "mlp": 50, "vocab": 61, "init_std": 0.2, "tied": True}
FAMILIES = {
    "smollm2": {},
    "llama3": {"tied": False, "rope": Rope(500.0, 4.0, 1.0, 4.0, 16)},
    "mistral-window": {"window": 5, "tied": False},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 10},
    "gpt2": {
        "heads": 6, "kv_heads": 6, "norm": "layernorm", "positions": "learned", "act": "gelu", "max_seq": 64,
        "qkv_bias": True, "o_bias": True, "mlp_bias": True,
    },
}  # fmt: skip
LAYOUTS = {"serial": Layout(), "tp2": Layout(tp=2), "tp3": Layout(tp=3), "pp2": Layout(pp=2), "tp2-pp2": Layout(tp=2, pp=2)}
LENGTHS = (19, 7, 12)
NATIVE = load()
SETUP = Setup()
NATIVES = {"c++": NATIVE, "torch": None}


def spec_of(family: str) -> ModelSpec:
    return ModelSpec(**{**BASE, **FAMILIES[family]})


def sequences(block: int = 4) -> Sequences:
    generator = torch.Generator().manual_seed(3)
    return Sequences([torch.randint(61, (n,), generator=generator).tolist() for n in LENGTHS], block, 64)


@cache
def expected(spec: ModelSpec, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The training form's logits of each sequence, [length, vocabulary]."""

    def body(mesh):
        chunk, _ = build(spec, random_tensors(spec), mesh, dtype)
        with torch.no_grad():
            return [chunk.head.logits(chunk(torch.tensor([t]), 1, len(t))).float() for t in sequences().tokens]

    return run_ranks(cut(spec, Layout()), body)[0]


def served(spec, layout, work, native=NATIVE, setup=SETUP, dtype=torch.float32):
    """Logits of each sequence from the serving form, as each rank of the last stage has them."""
    known = sequences(setup.block * layout.cp)
    steps = [known.step(w) for w in work]
    ranks = run_ranks(cut(spec, layout), lambda mesh: run_steps(spec, random_tensors(spec), mesh, steps, native, setup, dtype))
    return [joined(work, logits) for logits in ranks if logits[0] is not None]


def joined(work, logits):
    rows = {n: [] for n in range(len(LENGTHS))}
    for w, of_step in zip(work, logits, strict=True):
        for (n, _), part in zip(w, of_step.split([count for _, count in w]), strict=True):
            rows[n].append(part)
    return [torch.cat(r) for r in rows.values()]


WHOLE = [[(0, 19), (1, 7), (2, 12)]]
MIXED = [[(0, 5), (1, 1)], [(0, 1), (2, 9), (1, 1)], [(1, 5), (0, 13), (2, 1)], [(2, 2)]]
SINGLE = [[(n, 1)] for n, length in enumerate(LENGTHS) for _ in range(length)]


@pytest.mark.parametrize(("native", "layout"), [("torch", "serial"), *(("c++", layout) for layout in LAYOUTS)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_serves_what_it_was_trained_to(family, layout, native):
    spec = spec_of(family)
    for logits in served(spec, LAYOUTS[layout], MIXED, NATIVES[native]):
        for got, right in zip(logits, expected(spec), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("work", [WHOLE, SINGLE], ids=["whole", "one by one"])
def test_prompts_at_once_and_token_by_token_are_equal(work):
    spec = spec_of("mistral-window")
    (logits,) = served(spec, Layout(), work)
    for got, right in zip(logits, expected(spec), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv", ["auto", "fp32", "int8", "fp8"])
@pytest.mark.parametrize("layout", ["serial", "tp2"])
def test_bf16_is_near(layout, kv):
    spec = ModelSpec(**{**BASE, "head_dim": 64, "hidden": 64, "mlp": 96})
    rights = expected(spec)
    for logits in served(spec, LAYOUTS[layout], MIXED, setup=Setup(kv, block=16), dtype=torch.bfloat16):
        for got, right in zip(logits, rights, strict=True):
            assert (got - right).norm() / right.norm() < {"fp8": 0.1}.get(kv, 0.03)


def test_without_shared_memory_sums_go_through_the_communicator():
    spec = spec_of("gpt2")
    for logits in served(spec, Layout(tp=2), MIXED, setup=Setup(share=False)):
        for got, right in zip(logits, expected(spec), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


def test_no_weight_exists_twice():
    spec = ModelSpec(**{**BASE, "head_dim": 64, "hidden": 64, "mlp": 96})

    def body(mesh):
        chunk, place = build(spec, random_tensors(spec), mesh, torch.bfloat16)
        lower(spec, chunk, place, NATIVE, Setup(), Capacity(4, 4, 16))
        return {t.name for w in chunk.weights() for t in (p.tensor for p in w.parts) if w.ndim > 1 and w.numel()}

    assert run_ranks(cut(spec, Layout()), body)[0] == (set() if NATIVE is not None and NATIVE.bf16 else {"embed"})
