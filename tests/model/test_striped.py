"""The serving form over cp gives the logits of the training form, however tokens come in steps and what else is cut."""

import pytest
import torch

from rayplane.spec.layout import Layout
from tests.model.serving import Setup
from tests.model.test_lowered import BASE, FAMILIES, MIXED, NATIVES, SINGLE, WHOLE, ModelSpec, expected, served, spec_of

LAYOUTS = {"cp2": Layout(cp=2), "cp3": Layout(cp=3), "tp2-cp2": Layout(tp=2, cp=2), "pp2-cp2": Layout(pp=2, cp=2)}


def served_over_cp(spec, layout, work, block, **kwargs):
    return served(spec, layout, work, setup=Setup(block=block, **kwargs.pop("setup", {})), **kwargs)


def assert_right(spec, ranks):
    assert ranks
    for logits in ranks:
        for got, right in zip(logits, expected(spec), strict=True):
            torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_over_cp_serves_what_it_was_trained_to(family, layout):
    spec = spec_of(family)
    assert_right(spec, served_over_cp(spec, layout, MIXED, 2))


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("work", [WHOLE, SINGLE], ids=["whole", "one by one"])
def test_stripes_may_be_of_any_width_and_steps_of_any_length(work, block):
    for family in ("smollm2", "mistral-window"):
        assert_right(spec_of(family), served_over_cp(spec_of(family), Layout(cp=2), work, block))


@pytest.mark.parametrize("work", [MIXED, SINGLE], ids=["mixed", "one by one"])
@pytest.mark.parametrize(("native", "cp"), [("c++", 2), ("c++", 3), ("torch", 2), ("torch", 3)])
def test_without_shared_memory_queries_go_round_the_ranks(native, cp, work):
    spec = spec_of("mistral-window")
    assert_right(spec, served_over_cp(spec, Layout(cp=cp), work, 2, native=NATIVES[native], setup={"share": False}))


@pytest.mark.parametrize("kv", ["auto", "int8"])
@pytest.mark.parametrize("layout", [Layout(cp=2), Layout(tp=2, cp=2)], ids=["cp2", "tp2-cp2"])
def test_bf16_over_cp_is_near(layout, kv):
    spec = ModelSpec(**{**BASE, "head_dim": 64, "hidden": 64, "mlp": 96})
    for logits in served_over_cp(spec, layout, MIXED, 4, setup={"kv": kv}, dtype=torch.bfloat16):
        for got, right in zip(logits, expected(spec), strict=True):
            assert (got - right).norm() / right.norm() < 0.03
