"""What zero cuts and what it costs: by count of ranks and bytes, on devices that hide nothing, so that every collective shows."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from rayplane.errors import PlacementError, SpecError
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import described, homogeneous
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.machine.topology import topology
from rayplane.plan.step.memory import TIGHT
from rayplane.plan.step.share import parts, share
from rayplane.plan.step.states import of_parameter, states
from rayplane.plan.step.train import Pricer, price
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Estimate, Workload

MODEL = ModelSpec(layers=4, hidden=256, heads=8, kv_heads=4, head_dim=32, mlp=704, vocab=1024)
WORK = Workload(global_batch=16, seq_len=128, precision="fp32")
CPUS = homogeneous({"a": 2, "b": 2}, "cpu", 4 * 10**9, {})
NETWORK = Network(CPUS.links, Pricer(MODEL, WORK, CPUS).device)
ALL = Group(4, 2)
"""Two ranks on each of two islands."""
EMBED = HEAD = 1024 * 256
LAYER = 256 * 256 * 3 + 3 * 256 * 704 + 2 * 256
FINAL = 256
TOTAL = MODEL.num_params


def priced(layout: Layout, cluster: ClusterSpec = CPUS, work: Workload = WORK) -> Estimate:
    return price(MODEL, work, cluster, layout)


def scatter_s(params: int, group: Group = ALL) -> float:
    """In calls of 4 MiB of gradients; a layer of this model is less than that."""
    return NETWORK.all_gather_s(group, 4 * params, math.ceil(4 * params / (4 << 20)))


def test_the_sizes_of_this_module_are_those_of_the_model() -> None:
    assert EMBED + HEAD + FINAL + 4 * LAYER == TOTAL


@pytest.mark.parametrize(("zero", "whole"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_each_step_of_zero_cuts_one_more_kind_of_state(zero: int, whole: int) -> None:
    """All but what is whole for a moment: three gradient matrices, two units of weights."""
    of = share(parts(MODEL), 1)
    found = states(of, Layout(dp=4, zero=zero, boundaries=(4,)), (0,), of_parameter("fp32"))
    gradients = HEAD + FINAL + 2 * 256 * 704 + 256 * 704 if zero > 1 else 0
    weights = 2 * LAYER if zero > 2 else 0
    ways = [4 if whole <= kept else 1 for kept in (0, 1, 2)]
    assert found.weights == pytest.approx(4 * (TOTAL / ways[0] + weights), abs=16)
    assert found.gradients == pytest.approx(4 * (TOTAL / ways[1] + gradients), abs=16)
    assert found.optimizer == pytest.approx(8 * TOTAL / ways[2], abs=16)


def test_zero_over_an_island_cuts_by_its_ranks() -> None:
    of = share(parts(MODEL), 1)
    inside, everywhere = (states(of, Layout(dp=4, zero=1, shard=s, boundaries=(4,)), (0,), of_parameter("fp32")) for s in (2, 0))
    assert inside.optimizer == 2 * everywhere.optimizer


def test_an_embedding_tied_across_stages_and_what_tp_ranks_share_stay_whole() -> None:
    tied = replace(MODEL, tied=True)
    of, cut = share(parts(tied), 1), Layout(dp=4, pp=2, zero=3, boundaries=(2, 2))
    one_stage = states(of, replace(cut, pp=1, boundaries=(4,)), (0,), of_parameter("bf16"))
    first = states(of, cut, (0,), of_parameter("bf16"))
    assert one_stage.weights == pytest.approx(2 * ((EMBED + FINAL + 4 * LAYER) / 4 + 2 * LAYER), abs=16)
    assert first.weights == pytest.approx(2 * (EMBED + 2 * LAYER / 4 + 2 * LAYER), abs=16)
    assert first.optimizer == pytest.approx(12 * (EMBED + 2 * LAYER) / 4, abs=16), "but each end updates its share"
    split = Layout(dp=4, tp=8, zero=1, boundaries=(4,))
    shared, own = (states(share(parts(replace(MODEL, kv_heads=kv)), 8), split, (0,), of_parameter("fp32")) for kv in (4, 8))
    qkv = 3 * 32 * 256
    assert shared.optimizer - own.optimizer == pytest.approx(8 * 4 * (qkv - qkv / 4), rel=0.01), "q, k and v lie together"


def test_zero_2_reduces_every_microbatch_and_gathers_once() -> None:
    one, two = (priced(Layout(dp=4, micro_batch=1, zero=z)).time_s["dp"] for z in (1, 2))
    assert one == pytest.approx(2 * scatter_s(TOTAL))
    assert two == pytest.approx(4 * scatter_s(TOTAL) + scatter_s(TOTAL))


def test_zero_3_gathers_layers_twice_and_the_ends_once_in_every_microbatch() -> None:
    found = priced(Layout(dp=4, micro_batch=2, zero=3)).time_s["dp"]
    ends_s = scatter_s(EMBED) + scatter_s(HEAD + FINAL)
    assert found == pytest.approx(2 * (ends_s + 8 * scatter_s(LAYER) + scatter_s(TOTAL)))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_over_an_island_reduces_the_share_across_once(zero: int) -> None:
    found = priced(Layout(dp=4, micro_batch=4, zero=zero, shard=2)).time_s["dp"]
    inside, across = Group(2, 2), NETWORK.all_reduce_s(Group(2, 1), 4 * TOTAL / 2, 4)
    gathers_s = scatter_s(TOTAL, inside) if zero < 3 else scatter_s(EMBED, inside) + scatter_s(HEAD + FINAL, inside)
    gathers_s += 8 * scatter_s(LAYER, inside) if zero == 3 else 0.0
    assert found == pytest.approx(gathers_s + scatter_s(TOTAL, inside) + across)


def test_compute_hides_what_zero_3_gathers_but_for_the_first_unit() -> None:
    wide = ModelSpec(layers=8, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab=32000)
    gpus = homogeneous({"a": 8}, "h100-sxm", 80 * 10**9, {})
    work = Workload(global_batch=16, seq_len=8192, precision="bf16")
    long_s, short_s = (price(wide, w, gpus, Layout(dp=8, zero=3)).time_s["dp"] for w in (work, replace(work, seq_len=128)))
    embed_s = Network(gpus.links, Pricer(wide, work, gpus).device).all_gather_s(Group(8, 8), 2 * 32000 * 4096)
    assert 2 * embed_s < long_s < 0.2 * short_s


def test_groups_of_a_shard_are_neighbours() -> None:
    topo = topology(homogeneous({f"n{i}": 8 for i in range(4)}, "h100-sxm", 1, {}))
    inside = Layout(dp=32, zero=3, shard=8)
    assert (topo.shard_group(inside), topo.copies_group(inside)) == (Group(8, 8), Group(4, 1))
    pairs = replace(inside, shard=4)
    assert (topo.shard_group(pairs), topo.copies_group(pairs)) == (Group(4, 4), Group(8, 2))
    assert topo.shard_group(replace(inside, shard=16)) == Group(16, 8)
    assert topo.shard_group(replace(inside, shard=0)) == topo.dp_group(inside)


def test_offloaded_state_costs_copies_and_no_device_memory() -> None:
    gpus = homogeneous({"a": 8}, "a100-80gb", 80 * 10**9, {})
    work, layout = replace(WORK, precision="bf16"), Layout(dp=2, zero=1)
    here, away = (priced(layout, gpus, replace(work, offload=offload)) for offload in (False, True))
    assert away.memory["optimizer"] == 0 < here.memory["optimizer"]
    params = TOTAL / 2
    extra_s = params * 32 / 35e9 - params * 32 / (0.78 * 2039e9)
    assert away.time_s["optimizer"] - here.time_s["optimizer"] == pytest.approx(extra_s, rel=1e-3)


def test_a_host_frees_nothing_by_offloading_to_itself() -> None:
    here, away = (priced(Layout(), CPUS, replace(WORK, offload=offload)) for offload in (False, True))
    assert away.memory["optimizer"] - here.memory["optimizer"] == 4 * TOTAL, "the master copy is one more"


def test_layers_that_are_computed_again_are_paid_for_and_freed_one_by_one() -> None:
    found = [priced(Layout(recompute="full", recompute_layers=n)) for n in (1, 2, 3)] + [priced(Layout(recompute="full"))]
    steps = [b.time_s["compute"] - a.time_s["compute"] for a, b in pairwise(found)]
    bytes_ = [a.memory["activations"] - b.memory["activations"] for a, b in pairwise(found)]
    assert steps == pytest.approx([steps[0]] * 3)
    assert bytes_ == [bytes_[0]] * 3
    assert steps[0] > 0 < bytes_[0]


def test_as_few_layers_are_computed_again_as_memory_asks_for(llama3_8b: ModelSpec, llama_work: Workload) -> None:
    gpus = described(ClusterSection(nodes=[NodeSection(device="a100-40gb", devices=8, count=2, name="dgx")]))
    found = plan(llama3_8b, replace(llama_work, global_batch=64), gpus, None)
    layouts = [c.layout for c in (*found.runners_up, found)]
    partly = [x for x in layouts if x.recompute_layers]
    assert partly
    pricer = Pricer(llama3_8b, replace(llama_work, global_batch=64), gpus)
    for layout in partly:
        fewer = replace(layout, recompute_layers=layout.recompute_layers - 1, boundaries=())
        fewer = fewer if fewer.recompute_layers else replace(fewer, recompute="none")
        assert pricer.counted(pricer.outline(fewer)).memory_bytes > 0.9 * gpus.memory_bytes


def test_more_zero_is_tried_only_where_less_is_too_large_or_tight(
    llama3_8b: ModelSpec, llama_work: Workload, h100s_64: ClusterSpec
) -> None:
    found = plan(llama3_8b, llama_work, h100s_64, None)
    layouts = [found.layout, *(c.layout for c in found.runners_up), *(r.layout for r in found.rejected)]
    assert {x.zero for x in layouts} == {0, 1, 2, 3}
    assert {x.shard for x in layouts} == {0, 8, 4, 2}
    pricer = Pricer(llama3_8b, llama_work, h100s_64)
    for layout in layouts:
        if layout.zero == 2 and layout.recompute == "none":
            less = replace(layout, zero=1, boundaries=())
            sizes = [
                pricer.counted(pricer.outline(replace(less, micro_batch=n))).memory_bytes for n in range(1, layout.micro_batch + 1)
            ]
            assert max(sizes) > TIGHT * h100s_64.memory_bytes, layout


def test_replicas_with_unequal_microbatches_are_refused_under_zero_2(llama3_8b: ModelSpec, h100s_64: ClusterSpec) -> None:
    odd = Workload(global_batch=17, seq_len=2048, precision="bf16")
    with pytest.raises(
        SpecError, match="zero 2 with micro_batch 1 needs a global_batch that dp 2 divides; it is 17; use micro_batch: 2"
    ):
        plan(llama3_8b, odd, h100s_64, LayoutSection(dp=2, tp=8, zero=2, micro_batch=1))
    assert plan(llama3_8b, odd, h100s_64, LayoutSection(dp=2, tp=8, zero=2)).layout.micro_batch > 1


def test_offloading_is_offered_where_it_would_do(llama3_8b: ModelSpec, llama_work: Workload) -> None:
    one = homogeneous({"a": 1}, "h100-sxm", 80 * 10**9, {})
    with pytest.raises(PlacementError, match=r"most of it optimizer .* or with train\.optimizer\.offload: true"):
        plan(llama3_8b, llama_work, one, None)
    assert plan(llama3_8b, replace(llama_work, offload=True), one, None).estimate.memory["optimizer"] == 0
