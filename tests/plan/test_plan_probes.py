"""What is measured covers the shapes that the planner will ask for, and ends in time."""

import pytest

from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.measured.probes import LONGEST_S, Yardstick, merged, probes, usual
from rayplane.spec.model import ModelSpec

LLAMA = ModelSpec(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab=128256)
TWO_BY_EIGHT = homogeneous({"a": 8, "b": 8}, "h100-sxm", 80 * 10**9, {})
CORES = homogeneous({"here": 2}, "cpu", 10**10, {})


def test_every_shape_of_group_is_measured_once():
    asked = probes(TWO_BY_EIGHT, usual(device("h100-sxm"), quick=False), quick=False)
    shapes = [(g.size, g.per_island) for g in asked.groups if g.axis != "pp"]
    assert len(shapes) == len(set(shapes))
    inside, across = {s for s in shapes if s[0] <= s[1]}, {s for s in shapes if s[0] > s[1]}
    assert inside == {(2, 2), (4, 4), (8, 8)}
    assert across == {(16, 8), (8, 4), (4, 2), (2, 1)}
    assert {g.per_island > 1 for g in asked.groups if g.axis == "pp"} == {True, False}


def test_one_device_has_no_groups():
    asked = probes(homogeneous({"here": 1}, "cpu", 10**10, {}), usual(device("cpu"), quick=True), quick=True)
    assert asked.groups == ()
    assert {(row["tp"], row["cp"]) for row in asked.rows["layers"]} == {(1, 1)}
    assert {row["busy"] for row in asked.rows["products"]} == {1}


def test_a_model_that_is_too_large_for_the_devices_is_measured_with_fewer_tokens():
    asked, core = probes(CORES, (Yardstick(LLAMA, 4096, ("fp32",)),), quick=False), device("cpu")
    rate = core.gemm_efficiency * core.peak_flops["fp32"]
    for row in asked.rows["products"]:
        assert row["tokens"] <= 16 or 2.0 * row["tokens"] * row["rows"] * row["columns"] / rate <= LONGEST_S
    gpus = probes(TWO_BY_EIGHT, (Yardstick(LLAMA, 4096, ("bf16",)),), quick=False)
    assert max(row["tokens"] for row in gpus.rows["products"]) == 4 * 4096


def test_shapes_are_those_of_the_model_whole_and_cut():
    asked = probes(TWO_BY_EIGHT, (Yardstick(LLAMA, 4096, ("bf16",)),), quick=False)
    shapes = {(row["rows"], row["columns"]) for row in asked.rows["products"]}
    assert {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)} <= shapes
    assert {(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)} <= shapes


def test_less_is_measured_quickly():
    whole, quick = (probes(CORES, usual(device("cpu"), quick=q), quick=q) for q in (False, True))
    assert len(quick.rows["products"]) * 4 < len(whole.rows["products"])
    assert len(quick.sizes) < len(whole.sizes)
    assert set(quick.rows) == set(whole.rows)


@pytest.mark.parametrize(("seconds", "median"), [([1.0, 9.0, 2.0], 2.0), ([1.0, 3.0], 2.0)])
def test_of_what_several_ranks_measured_the_median_counts(seconds, median):
    rows = [("messages", {"inside": True, "bytes": 4096, "seconds": s}) for s in seconds]
    rows.append(("products", {"tokens": 1, "forward_s": 5.0, "input_grad_s": 6.0}))
    assert merged(rows) == {
        "messages": [{"inside": True, "bytes": 4096, "seconds": median}],
        "products": [{"tokens": 1, "forward_s": 5.0, "input_grad_s": 6.0}],
    }
