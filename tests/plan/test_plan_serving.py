"""A serving job becomes a plan: its words are the planner's, what it leaves out is usual, what cannot be met is said."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.errors import PlacementError, RayplaneError
from rayplane.plan.machine.catalog import described, device
from rayplane.plan.machine.cores import machines
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.serve_explain import serve_object, serve_report
from rayplane.plan.serving.serve_plan import ServePlan
from rayplane.plan.serving.serve_rules import BALANCED, CHEAPEST, FASTEST, GIVEN, NEAREST
from rayplane.plan.serving.served import Cut, known
from rayplane.plan.serving.serving import asked_of, plan_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.job import ServeJob
from rayplane.spec.load import load_model
from tests.plan.profiles import measured

H100 = {"requests_s": 20, "prompt_tokens": 512, "output_tokens": 128}
MEASURED_MS = {1: 15.7, 8: 20.3, 32: 45.2}
"""A decode step of SmolLM2-135M in bf16 on two cores, by sequences of 160 tokens each."""


def job(model: str = "llama3-8b", layout: Any = "auto", dtype: str = "bf16", **serve: Any) -> ServeJob:
    return ServeJob.model_validate({"name": "a", "model": {"preset": model, "dtype": dtype}, "serve": serve, "layout": layout})


def cluster(devices: int = 8, kind: str = "h100-sxm", count: int = 1) -> ClusterSpec:
    return described(ClusterSection(nodes=[NodeSection(device=kind, devices=devices, count=count, name="n")]))


def plan(of: ServeJob, where: ClusterSpec) -> ServePlan:
    return plan_of(of, load_model(of.model), where)


def test_words_of_the_job_become_the_planners() -> None:
    of = job(
        max_context=4096,
        kv={"dtype": "fp8", "memory": 0.8},
        slo={"ttft_ms": 500, "tpot_ms": 50, "percentile": 99},
        load={"requests_s": 3, "prompt_tokens": 700, "output_tokens": 90, "cached": 0.5},
        replicas={"min": 2, "max": 3},
        batch={"max_tokens": 1024, "max_sequences": 64},
    )
    asked = asked_of(of, load_model(of.model), cluster())
    assert (asked.served.formats.weights, asked.served.formats.kv) == ("bf16", "fp8")
    d, e = asked.demand, asked.engine
    assert (d.prompt, d.output, d.rate, d.ttft_s, d.tpot_s, d.share) == (700, 90, 3, 0.5, 0.05, 0.99)
    assert (d.cached, d.longest, d.least, d.most) == (0.5, 4096, 2, 3)
    assert (e.chunk, e.max_sequences, e.memory_share) == (1024, 64, 0.8)


def test_what_is_left_out_is_usual_and_fits_the_context() -> None:
    usual = asked_of(job(), load_model(job().model), cluster()).demand
    assert (usual.prompt, usual.output, usual.rate, usual.limited) == (1024, 256, None, False)
    short = asked_of(job(max_context=100), load_model(job().model), cluster()).demand
    assert (short.prompt, short.output) == (75, 25)
    assert asked_of(job(kv={"prefix_cache": False}, load={"cached": 0.5}), load_model(job().model), cluster()).demand.cached == 0


@pytest.mark.parametrize("given", ["prompt_tokens", "output_tokens"])
def test_one_length_leaves_the_other_what_is_left(given: str) -> None:
    d = asked_of(job(max_context=1000, load={given: 990}), load_model(job().model), cluster()).demand
    assert d.prompt + d.output <= 1000 and min(d.prompt, d.output) >= 1


def test_steps_are_short_where_cores_compute_them() -> None:
    chunks = [asked_of(job("smollm2-135m"), load_model(job("smollm2-135m").model), cluster(2, k)).engine.chunk for k in ("l4", "cpu")]
    assert chunks == [8192, 512]


def test_each_demand_has_its_rule() -> None:
    slo = {"ttft_ms": 1000, "tpot_ms": 40}
    assert plan(job(slo=slo, load=H100), cluster()).rule == CHEAPEST
    assert plan(job(slo=slo), cluster()).rule == FASTEST
    assert plan(job(), cluster()).rule == BALANCED
    assert plan(job(layout={"tp": 2}), cluster()).rule == GIVEN
    assert plan(job(slo={"ttft_ms": 1}), cluster()).rule == NEAREST


def test_limits_alone_serve_as_many_as_hold_them_and_no_layout_serves_more() -> None:
    best, *others = (of := plan(job(slo={"ttft_ms": 1000, "tpot_ms": 40}), cluster())).best, *of.runners_up
    assert best.misses == () and best.ttft_s <= 1 and best.tpot_s <= 0.04
    assert all(o.rate <= best.rate for o in others)
    with_rate = plan(job(slo={"ttft_ms": 1000, "tpot_ms": 40}, load={"requests_s": 0.97 * best.rate}), cluster())
    assert with_rate.best.devices <= 8


def test_replicas_stay_within_their_bounds() -> None:
    assert plan(job(load=H100, replicas={"min": 3}), cluster()).best.replicas == 3
    busy = {**H100, "requests_s": 100}
    assert plan(job(load=busy, slo={"tpot_ms": 30}, replicas={"max": 2}), cluster()).best.replicas <= 2


def test_a_given_layout_is_priced_and_its_misses_are_said() -> None:
    quick, slow = (plan(job(layout={"tp": 2, "dp": 1}, slo={"tpot_ms": ms}, load=H100), cluster()).best for ms in (50, 1))
    assert (quick.layout.tp, quick.layout.dp, quick.misses) == (2, 1, ())
    assert slow.misses[0].startswith("tpot ") and slow.misses[0].endswith("ms is above 1 ms")


def test_a_given_layout_that_does_not_fit_names_one_that_does() -> None:
    with pytest.raises(PlacementError, match=r"tp2 does not fit: weights .* for the cache; tp3 fits"):
        plan(job("llama3-70b", layout={"tp": 2}), cluster())
    with pytest.raises(PlacementError, match="layout: 4 x tp4 needs 16 devices, the cluster has 8; use 2 x tp4, or more devices"):
        plan(job(layout={"tp": 4, "dp": 4}), cluster())


def test_a_context_for_which_there_is_no_room_is_refused() -> None:
    of = job("llama3-405b", max_context=131072, kv={"memory": 0.62}, dtype="bf16")
    refused = {str(r): r.reason for r in plan(of, cluster(8, "mi300x")).refused}
    assert any("one sequence has 131072" in reason for reason in refused.values())


def test_a_limit_that_nothing_holds_gives_the_nearest_and_says_so() -> None:
    of = plan(job("smollm2-135m", slo={"ttft_ms": 500, "tpot_ms": 50}), cluster(2, "cpu"))
    assert of.best.misses and "no layout serves ttft <= 500 ms, tpot <= 50 ms" in of.shortfall
    assert serve_report(of).notes[0] == of.shortfall


def test_more_requests_than_can_be_served_give_the_most_and_say_so() -> None:
    of = plan(job(load={**H100, "requests_s": 10_000}), cluster())
    assert of.rule == NEAREST and "Most is to be had of" in of.shortfall
    assert "requests/s for each replica are above the" in of.best.misses[0]
    assert of.best.most_tokens_s == max(o.most_tokens_s for o in (of.best, *of.runners_up))


def test_a_decode_step_and_a_prompt_on_two_cores_take_what_was_measured() -> None:
    on = machines(cluster(2, "cpu"), "bf16")[0]
    of = Replica(known("smollm2-135m"), Cut(), Network(on.cluster.links, on.device), 1)
    for sequences, ms in MEASURED_MS.items():
        assert of.counts(sequences, 0, 0).total + of.cache_s(sequences, sequences * 160) == pytest.approx(ms / 1e3, rel=0.06)
    assert 512 / (of.counts(0, 512, 1).total + of.prompt_s(0, 512)) == pytest.approx(1041, rel=0.06)


def test_a_laptop_serves_from_one_rank_with_all_its_cores() -> None:
    best = plan(job("smollm2-135m", load={"prompt_tokens": 128, "output_tokens": 64}), cluster(2, "cpu")).best
    assert (best.layout.size, best.cores, best.devices) == (1, 2, 2)


def test_cores_are_shared_by_ranks_and_gpus_are_not() -> None:
    assert [m.cores for m in machines(cluster(6, "cpu"), "bf16")] == [6, 3, 2, 1]
    uneven = replace(cluster(6, "cpu"), nodes=(*cluster(6, "cpu").nodes, *cluster(2, "cpu", 1).nodes))
    assert [m.cluster.num_devices for m in machines(uneven, "bf16")] == [1, 2, 4, 8]
    assert [m.cores for m in machines(cluster(), "bf16")] == [1]


def test_what_was_measured_of_a_gpu_counts_and_of_cores_does_not() -> None:
    for kind, times in (("h100-sxm", 2.0), ("cpu", 1.0)):
        where, peak = cluster(2, kind), device(kind).peak_flops
        share = device(kind).gemm_efficiency / 2 * peak["bf16"] / peak["fp32"]
        profile = measured(where, replace(device(kind), gemm_efficiency=share))  # in fp32; called bf16 below
        products = tuple(row.model_copy(update={"precision": "bf16"}) for row in profile.products)
        known_of = replace(where, profile=profile.model_copy(update={"products": products}))
        table, seen = (machines(c, "bf16")[0].device for c in (where, known_of))
        assert table.gemm_efficiency / seen.gemm_efficiency == pytest.approx(times, rel=0.1)


def test_a_long_prompt_comes_sooner_over_cp() -> None:
    long = {"requests_s": 0.01, "prompt_tokens": 120_000, "output_tokens": 50}
    cuts = ({"tp": 8}, {"tp": 8, "cp": 2})
    whole, parts = (plan(job("qwen2-7b", c, load=long), cluster(8, "h200", 2)).best.ttft.p50_s for c in cuts)
    assert parts < 0.65 * whole


def test_plain_data_holds_every_figure() -> None:
    of = plan(job(load=H100, slo={"ttft_ms": 1000, "tpot_ms": 40}), cluster())
    told = json.loads(json.dumps(serve_object(of), default=str))
    assert told["layout"]["dp"] == told["replicas"] == of.best.replicas
    assert told["ttft"].keys() == told["tpot"].keys() == {"p50_s", "share_s", "p99_s"}
    assert {"cores", "devices", "tokens_s", "most_tokens_s", "cache_tokens", "sequences", "saturated", "why", "verdict"} <= told.keys()
    assert told["evaluated"] == 1 + len(told["runners_up"]) + len(told["rejected"])
    assert sum(told["prompt_terms"].values()) <= of.best.ttft.p50_s


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["llama3-8b", "smollm2-135m", "qwen3-14b", "gpt2"]),
    st.sampled_from(["h100-sxm", "cpu", "gb200", "l4"]),
    st.integers(1, 9),
    st.fixed_dictionaries(
        {},
        optional={
            "slo": st.fixed_dictionaries({}, optional={"ttft_ms": st.floats(1e-3, 1e7), "tpot_ms": st.floats(1e-3, 1e7)}),
            "load": st.fixed_dictionaries(
                {"cached": st.floats(0, 0.99)},
                optional={
                    "requests_s": st.floats(1e-4, 1e5),
                    "prompt_tokens": st.integers(1, 900),
                    "output_tokens": st.integers(1, 100),
                },
            ),
            "kv": st.fixed_dictionaries({"memory": st.floats(0.01, 1), "dtype": st.sampled_from(["auto", "int8", "fp8", "fp32"])}),
            "batch": st.fixed_dictionaries({"max_tokens": st.integers(1, 20000), "max_sequences": st.integers(1, 5000)}),
            "replicas": st.fixed_dictionaries({"min": st.integers(1, 3), "max": st.integers(3, 9)}),
        },
    ),
)
def test_any_job_gives_a_plan_or_a_clear_error(model: str, kind: str, devices: int, serve: dict[str, Any]) -> None:
    try:
        of = plan(job(model, **serve), cluster(devices, kind))
    except RayplaneError as error:
        assert str(error)
    else:
        assert 1 <= of.best.devices <= devices
        assert bool(of.shortfall) == bool(of.best.misses)
        assert serve_report(of).why
