"""Why a plan is as it is: terms, axes, sweeps, stages and answers."""

import json
import math
import re
from dataclasses import replace

import pytest

from rayplane.cli.words import as_json
from rayplane.plan.machine.catalog import described, homogeneous
from rayplane.plan.why.explain import cluster_in_words, explain
from rayplane.plan.why.explanation import Explanation, as_object
from rayplane.plan.why.study import study
from rayplane.plan.why.tp_sweep import tp_sweep, turning
from rayplane.spec.cluster import ClusterSpec, Link
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.job import LayoutSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload

SMALL = ModelSpec(layers=16, hidden=2048, heads=16, kv_heads=4, head_dim=128, mlp=8192, vocab=32000, name="small")
QUICK = Workload(global_batch=64, seq_len=4096, precision="bf16")


def h100s(nodes: int, per_node: int = 8) -> ClusterSpec:
    return described(ClusterSection(nodes=[NodeSection(device="h100-sxm", devices=per_node, count=nodes)]))


@pytest.fixture(scope="module")
def told() -> Explanation:
    """Of a layout with every axis."""
    section = LayoutSection(dp=2, pp=2, cp=2, tp=2, sp=True, zero=1, micro_batch=2)
    return explain(SMALL, QUICK, h100s(2), section, name="every-axis")


@pytest.fixture(scope="module")
def chosen() -> Explanation:
    """Of a layout that the planner chose."""
    return explain(SMALL, QUICK, h100s(2), None, name="chosen")


def test_terms_sum_to_the_step(told: Explanation, chosen: Explanation) -> None:
    for waterfall in (*told.waterfalls, *chosen.waterfalls):
        assert sum(s for _, s in waterfall.terms) == pytest.approx(waterfall.step_s, rel=1e-6)
    for sweep in (*told.sweeps, *chosen.sweeps):
        for p in sweep.points:
            assert p.step_s is None or sum(s for _, s in p.terms) == pytest.approx(p.step_s, rel=1e-6), (sweep.name, p.label)


def test_the_winner_comes_first_and_every_other_says_why_it_lost(chosen: Explanation) -> None:
    first, *others = chosen.waterfalls
    assert (first.layout, first.lost_because) == (chosen.plan.layout, "")
    assert len(others) == len(chosen.plan.runners_up) > 3
    for other in others:
        assert re.match(r"(\d+\.\d% slower: \w+ \+)|(tight: )|(takes the same time)", other.lost_because), other.lost_because


def test_a_tight_layout_lost_for_its_memory(chosen: Explanation) -> None:
    assert all(w.lost_because.startswith("tight") for w in chosen.waterfalls[1:] if w.step_s < chosen.waterfalls[0].step_s)


def test_every_axis_is_bound_by_its_link(told: Explanation) -> None:
    axes = {a.name: a for a in told.axes}
    assert [(a.name, a.size) for a in told.axes] == [("tp", 2), ("cp", 2), ("dp", 4), ("pp", 2)]
    assert axes["tp"].link == axes["cp"].link == "island"
    for a in told.axes:
        assert 0 <= a.exposed_s <= a.comm_s
        assert a.bound == ("communication" if a.comm_s > a.compute_s else "compute")
        assert a.arithmetic.count("assumed") + a.arithmetic.count("table") >= 1
        assert a.comm_s >= sum(t.sent_bytes for t in a.traffic) / (1.4 * 450e9), "no link sends faster than it can"


def test_a_slow_link_makes_communication_bind() -> None:
    cluster = h100s(2)
    slow = replace(cluster, links=replace(cluster.links, island=Link(0.5, 3.5)))
    section = LayoutSection(dp=2, tp=8, micro_batch=1)
    tp = {name: explain(SMALL, QUICK, c, section).axes[0] for name, c in (("fast", cluster), ("slow", slow))}
    assert (tp["fast"].bound, tp["slow"].bound) == ("compute", "communication")
    assert tp["slow"].exposed_s > tp["fast"].exposed_s


def test_tp_turns_where_it_leaves_the_island() -> None:
    cluster = h100s(4, per_node=4)
    apart = replace(cluster, links=replace(cluster.links, fabric=Link(1.0, 100.0)))
    of = study(SMALL, QUICK, apart, None)
    sweep = tp_sweep(of)
    assert [int(p.x) for p in sweep.points] == [1, 2, 4, 8, 16]
    assert turning(sweep.points) == 4
    assert sweep.points[3].step_s > sweep.points[2].step_s
    assert sweep.finding.startswith("tp pays up to 4: ")
    assert "at 8 its collectives leave the island" in sweep.finding


def test_tp_turns_inside_an_island_that_is_slow() -> None:
    cluster = h100s(1)
    slow = replace(cluster, links=replace(cluster.links, island=Link(4.0, 50.0)))
    assert turning(tp_sweep(study(SMALL, QUICK, slow, None)).points) < 8


def test_a_bubble_shrinks_with_microbatches_as_the_formula_says(told: Explanation) -> None:
    sweep = next(s for s in told.sweeps if s.name == "microbatches")
    bubbles = {int(p.x): p.bubble for p in sweep.points}
    assert list(bubbles.values()) == sorted(bubbles.values(), reverse=True)
    p = told.plan.layout.pp
    for m, bubble in bubbles.items():
        assert bubble == pytest.approx((p - 1) / (m + p - 1), abs=0.1)


def test_more_chunks_idle_less(told: Explanation) -> None:
    sweep = next(s for s in told.sweeps if s.name == "vpp")
    bubble = {p.label: p.bubble for p in sweep.points}
    assert bubble["interleaved vpp 2"] < bubble["1f1b"]
    assert {"gpipe", "1f1b", "zb-h1", "zbv vpp 2"} <= bubble.keys()


def test_dp_and_tp_are_compared_on_the_same_devices(chosen: Explanation) -> None:
    sweep = next(s for s in chosen.sweeps if s.name == "dp-or-tp")
    sizes = {p.layout.size for p in sweep.points if p.layout}
    assert sizes == {chosen.plan.layout.size}
    assert min(p.step_s for p in sweep.points if p.step_s is not None and "leaves" not in p.note) == chosen.plan.estimate.step_s


def test_long_contexts_want_cp(chosen: Explanation) -> None:
    sweep = next(s for s in chosen.sweeps if s.name == "cp-or-tp")
    assert sweep.finding.startswith("cp pays from ")
    lengths = sorted({int(p.x) for p in sweep.points})
    assert lengths == [4096 << i for i in range(5)]
    assert all(p.layout is None or p.layout.cp > 1 or i % 2 == 0 for i, p in enumerate(sweep.points))


def test_what_does_not_fit_is_a_point_with_its_reason() -> None:
    of = explain(SMALL, replace(QUICK, global_batch=512), h100s(1), None)
    sizes = next(s for s in of.sweeps if s.name == "micro_batch")
    large = [p for p in sizes.points if p.step_s is None]
    assert large
    assert all(re.fullmatch(r"does not fit: [\d.]+ GB of 80\.0 GB", p.note) for p in large)


def test_stages_hold_all_layers_and_what_the_estimate_says(told: Explanation) -> None:
    assert sum(n for s in told.stages for n in s.layers) == SMALL.layers
    assert max(s.memory_bytes for s in told.stages) == told.plan.estimate.memory_bytes
    for s in told.stages:
        assert sum(n for _, n in s.memory) == s.memory_bytes < s.capacity_bytes == 80 * 10**9
        assert s.kind == "h100-sxm"


def test_the_timeline_is_the_step(told: Explanation) -> None:
    assert len(told.timeline.ranks) == 2
    assert told.timeline.end_s == pytest.approx(told.plan.estimate.step_s, rel=1e-3)
    assert told.shown_microbatches == told.plan.num_microbatches


def test_a_long_step_is_drawn_in_part() -> None:
    section = LayoutSection(dp=1, pp=8, micro_batch=1)
    of = explain(SMALL, replace(QUICK, global_batch=2048), h100s(1), section)
    assert of.shown_microbatches < of.plan.num_microbatches == 2048
    assert sum(map(len, of.timeline.ranks)) < 20_000


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_question_is_answered_with_numbers(devices: int, precision: str) -> None:
    model = ModelSpec(layers=6, hidden=96, heads=9, kv_heads=3, head_dim=32, mlp=200, vocab=500, tied=True, name="odd")
    of = explain(model, Workload(6, 128, precision), homogeneous({"here": devices}, "cpu", 4 * 10**9, {}), None)
    assert [a.number for a in of.answers] == list(range(1, 14))
    for a in of.answers:
        assert re.search(r"\d", a.text), a.question
        assert not re.search(r"\bnan\b|\binf\b", a.text), a.text
        assert a.text.endswith(".")
        assert a.question.endswith("?")


def test_an_uneven_cut_is_said_as_it_is() -> None:
    model = ModelSpec(layers=4, hidden=96, heads=9, kv_heads=3, head_dim=32, mlp=200, vocab=500, name="odd")
    of = explain(model, Workload(4, 128, "fp32"), homogeneous({"here": 2}, "cpu", 4 * 10**9, {}), LayoutSection(tp=2))
    assert "9 over tp 2 are 5 on 1 ranks, else 4" in of.answers[1].text
    assert "has at most 2 of the 3 KV heads; some are on several ranks" in of.answers[1].text


def test_a_model_with_one_head_and_one_layer_is_explained() -> None:
    model = ModelSpec(layers=1, hidden=32, heads=1, kv_heads=1, head_dim=32, mlp=64, vocab=64, name="one")
    of = explain(model, Workload(1, 16, "fp32"), homogeneous({"here": 1}, "cpu", 4 * 10**9, {}), None)
    assert all(re.search(r"\d", a.text) for a in of.answers)
    assert "The model has 1 head; tp has nothing to cut." in of.answers[2].text
    assert of.axes == ()


def test_the_object_is_plain_and_finite(told: Explanation) -> None:
    data = json.loads(as_json(as_object(told)))
    assert {"layout", "step_s", "waterfalls", "axes", "sweeps", "stages", "timeline", "what_ifs", "answers", "figures"} <= data.keys()
    assert sum(data["waterfalls"][0]["terms"].values()) == pytest.approx(data["step_s"])
    assert data["timeline"][0][0][0] == "F0.0"
    json.dumps(as_object(told), allow_nan=False)


def test_model_and_cluster_are_said_in_a_line(told: Explanation) -> None:
    assert told.model == (
        "small: 1.1 B parameters, 16 layers of 2048, 16 heads with 4 of KV, vocabulary 32,000; 64 x 4,096 tokens a step in bf16"
    )
    assert told.cluster == "16 x h100-sxm (80.0 GB) in 2 islands of 8; 450 GB/s a device within an island, 50 across"
    mixed = [NodeSection(device="h100-sxm", devices=4, name="a"), NodeSection(device="a100-40gb", devices=2, count=2, name="b")]
    words = cluster_in_words(described(ClusterSection(nodes=mixed)))
    assert words.startswith("4 x h100-sxm (80.0 GB) and 4 x a100-40gb (40.0 GB) in 1 island of 4 and 2 islands of 2; ")


def test_stages_of_two_kinds_of_device_each_name_theirs() -> None:
    nodes = [NodeSection(device="h100-sxm", devices=4, name="a"), NodeSection(device="a100-40gb", devices=4, name="b")]
    of = explain(SMALL, QUICK, described(ClusterSection(nodes=nodes)), LayoutSection(dp=4, pp=2, zero=1, micro_batch=1))
    assert {s.kind: s.capacity_bytes for s in of.stages} == {"h100-sxm": 80 * 10**9, "a100-40gb": 40 * 10**9}
    assert all(s.memory_bytes <= s.capacity_bytes for s in of.stages)


def test_numbers_of_seconds_are_finite(told: Explanation) -> None:
    for a in told.axes:
        assert all(math.isfinite(x) for x in (a.gbytes_s, a.comm_s, a.exposed_s, a.compute_s))
