"""The price of a layout: terms that sum, FLOPs by the book, and what must hold of any cost model."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.machine.kernels import product_s
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.step.compute import Microbatch, attention_s, head, layer
from rayplane.plan.step.draft import length_s, timeline
from rayplane.plan.step.pipe import Pipe
from rayplane.plan.step.practice import RAYPLANE, Practice
from rayplane.plan.step.share import parts, share
from rayplane.plan.step.train import Pricer, price
from rayplane.spec.cluster import ClusterSpec, Link
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload

MODEL = ModelSpec(layers=8, hidden=1024, heads=16, kv_heads=8, head_dim=64, mlp=2816, vocab=32000)
WORK = Workload(global_batch=64, seq_len=2048, precision="bf16")
H100S = homogeneous({"a": 8, "b": 8}, "h100-sxm", 80 * 10**9, {})

KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zbv", 2)]
degrees = st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]), st.sampled_from(KINDS))
Degrees = tuple[int, int, int, tuple[str, int]]


def cut(of: Degrees, micro_batch: int = 2) -> Layout:
    dp, pp, tp, (schedule, vpp) = of
    boundaries = even_boundaries(MODEL.layers, pp * vpp)
    return Layout(dp=dp, pp=pp, tp=tp, schedule=schedule, vpp=vpp, micro_batch=micro_batch, boundaries=boundaries)


def faster(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    links = {name: getattr(cluster.links, name) for name in ("island", "node", "fabric")}
    return replace(
        cluster,
        links=replace(cluster.links, **{n: Link(link.gbytes_s * factor, link.latency_us) for n, link in links.items()}),
    )


@settings(max_examples=40, deadline=None)
@given(degrees, st.booleans(), st.sampled_from([0, 1]), st.sampled_from(["none", "selective", "full"]))
def test_terms_sum_to_the_step(of: Degrees, sp: bool, zero: int, recompute: str) -> None:
    estimate = price(MODEL, WORK, H100S, replace(cut(of), sp=sp, zero=zero, recompute=recompute))
    assert sum(estimate.time_s.values()) == pytest.approx(estimate.step_s)
    assert all(seconds >= -1e-12 for seconds in estimate.time_s.values())
    assert sum(estimate.memory.values()) == estimate.memory_bytes
    assert 0 <= estimate.bubble < 1
    assert 0 < estimate.mfu < 1


@settings(max_examples=40, deadline=None)
@given(degrees, st.floats(1.0, 50.0))
def test_more_bandwidth_never_slows(of: Degrees, factor: float) -> None:
    layout = cut(of)
    before, after = (price(MODEL, WORK, c, layout).step_s for c in (H100S, faster(H100S, factor)))
    assert after <= before * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(degrees)
def test_time_and_memory_grow_with_layers(of: Degrees) -> None:
    layout = cut(of)
    doubled = replace(layout, boundaries=tuple(2 * n for n in layout.boundaries))
    small, large = price(MODEL, WORK, H100S, layout), price(replace(MODEL, layers=16), WORK, H100S, doubled)
    assert 1.0 < large.step_s / small.step_s < 2.0 + 1e-9
    assert large.memory_bytes > small.memory_bytes


def test_step_is_the_played_timeline() -> None:
    kinds = [(1, 4, 1, kind) for kind in KINDS]
    for of in (*kinds, (2, 4, 2, ("1f1b", 1)), (4, 1, 2, ("1f1b", 1)), (4, 4, 1, ("zbv", 2)), (4, 4, 1, ("interleaved", 2))):
        pricer = Pricer(MODEL, WORK, H100S)
        draft = pricer.draft(pricer.outline(replace(cut(of, micro_batch=4), zero=int(of[0] > 1))))
        assert pricer.price(draft).step_s == pytest.approx(timeline(draft).end_s, rel=1e-9)
        assert pricer.price(draft).bubble == pytest.approx(timeline(draft).bubble, abs=1e-9)


def test_tp_has_four_all_reduces_a_layer_two_at_the_ends_and_three_numbers_a_token_for_the_loss() -> None:
    """The very bytes that the runtime's ledger counts, and the wait for the slower rank; a microbatch of 2 comes 32 times."""
    gpu, tokens = device("h100-sxm"), 2 * WORK.seq_len
    reduce_s = partial(Network(H100S.links, gpu).all_reduce_s, Group(2, 2))
    whole_s, numbers_s = reduce_s(tokens * MODEL.hidden * 2), reduce_s(tokens * 4)
    plain = Practice(overlap_tp=False)
    work = Microbatch(MODEL, share(parts(MODEL), 2), gpu, "bf16", WORK.seq_len, 2, practice=plain)
    waits_s = gpu.jitter * (MODEL.layers * layer(work).total + head(work).total)
    layout = cut((1, 1, 2, ("1f1b", 1)))
    alone, beside = (Pricer(MODEL, WORK, H100S, p) for p in (plain, RAYPLANE))
    plain_s, beside_s = (p.price(p.draft(p.outline(layout))).time_s["tp"] for p in (alone, beside))
    assert plain_s == pytest.approx(32 * ((4 * MODEL.layers + 2) * whole_s + 3 * numbers_s + waits_s))
    assert 0.5 * plain_s < beside_s < 0.9 * plain_s, "the backward's sums run beside weight gradients"


def test_gemm_flops_of_all_layers_and_head_are_those_of_the_model() -> None:
    fast = replace(device("a100-80gb"), gemm_t0_us=0.0, cores=0, launch_us=0.0, hbm_gbytes_s=1e15, attention={"flash": ((1, 1e15),)})
    work = Microbatch(MODEL, share(parts(MODEL), 1), fast, "bf16", 2048, 1)
    flops = layer(work).total * fast.gemm_efficiency * fast.peak_flops["bf16"]
    attention = 6.0 * MODEL.layers * MODEL.heads * MODEL.head_dim * 2048
    head = 6.0 * MODEL.vocab * MODEL.hidden
    assert MODEL.layers * flops == pytest.approx(2048 * (MODEL.flops_per_token(2048) - attention - head))


def test_the_fullest_rank_counts_when_heads_do_not_divide() -> None:
    odd = ModelSpec(layers=1, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocab=49152)
    of = share(parts(odd), 2)
    assert (of.q_width, of.kv_width, of.mlp_width, of.vocab_rows) == (5 * 64, 2 * 64, 768, 24576)


def test_zero_bandwidth_difference_leaves_a_single_device_alone(reference: ModelSpec, reference_work: Workload) -> None:
    one = homogeneous({"a": 1}, "cpu", 4 * 10**9, {})
    first, second = (price(reference, reference_work, c, Layout(micro_batch=2)) for c in (one, faster(one, 100)))
    assert first == second
    assert first.time_s["tp"] == first.time_s["p2p"] == first.time_s["dp"] == 0.0


def test_tied_embeddings_cost_a_copy_and_a_reduction_across_the_pipe() -> None:
    tied = replace(MODEL, tied=True)
    untied_s, tied_s = (price(m, WORK, H100S, cut((1, 4, 1, ("1f1b", 1)))).time_s["dp"] for m in (MODEL, tied))
    assert untied_s == pytest.approx(0.0, abs=1e-12)
    assert tied_s > 1e-6


def test_a_v_holds_a_tied_embedding_once_and_sums_it_on_one_stage() -> None:
    v = price(replace(MODEL, tied=True), WORK, H100S, cut((1, 4, 1, ("zbv", 2))))
    assert v.time_s["dp"] == pytest.approx(0.0, abs=1e-12)


def test_recomputation_costs_time_and_saves_memory() -> None:
    found = [price(MODEL, WORK, H100S, replace(cut((2, 2, 2, ("1f1b", 1))), recompute=r)) for r in ("none", "selective", "full")]
    none, selective, full = found
    assert none.step_s < selective.step_s < full.step_s < 1.34 * none.step_s
    assert none.memory["activations"] > selective.memory["activations"] > full.memory["activations"]


def test_sp_saves_activations_at_the_same_bytes() -> None:
    none, sp = (price(MODEL, WORK, H100S, replace(cut((1, 2, 4 - 1, ("1f1b", 1))), sp=sp)) for sp in (False, True))
    assert sp.memory["activations"] < none.memory["activations"]
    assert sp.time_s["compute"] < none.time_s["compute"], "norms and residual sums run on a part of the tokens"
    assert sp.time_s["tp"] == pytest.approx(none.time_s["tp"], rel=0.6)


def test_zero_1_shortens_the_optimizer_and_gathers_the_weights() -> None:
    none, one = (price(MODEL, WORK, H100S, replace(cut((8, 1, 2, ("1f1b", 1))), zero=z)) for z in (0, 1))
    assert one.time_s["optimizer"] < none.time_s["optimizer"] / 3
    assert one.time_s["dp"] > 0
    assert one.memory["optimizer"] < none.memory["optimizer"] / 7


def test_the_head_does_its_backward_in_the_forward() -> None:
    work = Microbatch(MODEL, share(parts(MODEL), 1), device("h100-sxm"), "bf16", 2048, 1)
    seconds = head(work)
    assert seconds.weight_grad == 0.0
    assert seconds.input_grad < 0.1 * seconds.forward
    assert layer(work).weight_grad < layer(work).input_grad, "attention's backward belongs to the input gradient"


def test_the_loss_passes_over_its_logits_in_memory() -> None:
    """24 bytes a logit: six passes in fp32, beside the product and one addition to the weight's gradient."""
    h100 = device("h100-sxm")
    once, twice = (head(Microbatch(MODEL, share(parts(MODEL), 1), h100, "bf16", 2048, n)) for n in (4, 8))
    logits = 4 * 2048 * MODEL.vocab
    passes_s = 24 * logits / (h100.hbm_gbytes_s * 1e9)
    product_s = 3 * 2 * logits * MODEL.hidden / h100.peak_flops["bf16"]
    more_s = twice.total - once.total
    assert more_s > passes_s + product_s, "what more tokens cost, at peak rates"
    assert more_s < 2.5 * (passes_s + product_s)
    assert passes_s > 0.2 * product_s, "else this test would not see the passes"


@pytest.mark.parametrize("method", ["ring", "gather"])
def test_cp_cuts_the_activations_and_communicates(method: str) -> None:
    whole = price(MODEL, WORK, H100S, Layout(dp=4, micro_batch=2))
    cut_up = price(MODEL, WORK, H100S, Layout(dp=2, cp=2, micro_batch=4, cp_method=method))
    assert sum(cut_up.time_s.values()) == pytest.approx(cut_up.step_s)
    assert cut_up.time_s["cp"] > 0 == whole.time_s["cp"]
    assert cut_up.time_s["compute"] == pytest.approx(whole.time_s["compute"], rel=0.05)
    assert cut_up.time_s["dp"] == pytest.approx(whole.time_s["dp"]), "gradients are summed over dp x cp"
    longer = price(MODEL, WORK, H100S, Layout(dp=2, cp=2, micro_batch=2, cp_method=method))
    assert longer.memory["activations"] < 0.7 * whole.memory["activations"]


def test_the_ring_hides_behind_attention_what_a_gather_exposes() -> None:
    long = replace(WORK, seq_len=32768, global_batch=4)
    ring, gather = (price(MODEL, long, H100S, Layout(cp=4, cp_method=m)).time_s["cp"] for m in ("ring", "gather"))
    assert 0 < ring < gather


def test_a_model_without_a_gate_keeps_less() -> None:
    plain, gated = (price(replace(MODEL, act=a), WORK, H100S, Layout()) for a in ("gelu", "swiglu"))
    assert plain.memory["activations"] < gated.memory["activations"]
    assert plain.time_s["compute"] < gated.time_s["compute"]


def test_a_window_makes_attention_cheaper() -> None:
    near, far = (price(replace(MODEL, window=w), WORK, H100S, Layout()) for w in (256, 0))
    assert near.time_s["compute"] < far.time_s["compute"]


def test_a_product_is_computed_in_waves_of_tiles() -> None:
    gpu = replace(device("a100-80gb"), gemm_t0_us=0.0)
    whole = product_s(gpu, "bf16", (108 * 128, 256, 4096))
    assert 2.0 * 108 * 128 * 256 * 4096 / (gpu.gemm_efficiency * gpu.peak_flops["bf16"]) == pytest.approx(whole)
    assert product_s(gpu, "bf16", (109 * 128, 256, 4096)) > 1.2 * whole, "one tile more begins another wave"
    assert product_s(gpu, "bf16", (16, 256, 4096)) < whole


def test_attention_through_memory_takes_longer_the_more_keys_there_are() -> None:
    def of(practice: Practice, seq_len: int) -> float:
        work = Microbatch(MODEL, share(parts(MODEL), 1), device("a100-80gb"), "bf16", seq_len, 1, practice=practice)
        return sum(attention_s(work)) / seq_len**2

    flash, unfused, eager = (Practice(attention=kernel) for kernel in ("flash", "unfused", "eager"))
    assert of(flash, 2048) < of(unfused, 2048) < of(eager, 2048)
    assert of(unfused, 8192) == pytest.approx(of(unfused, 2048))
    assert of(replace(unfused, dropout=True), 2048) > of(unfused, 2048)


def test_what_a_practice_says_shows() -> None:
    def step_s(practice: Practice, layout: Layout) -> float:
        pricer = Pricer(MODEL, WORK, H100S, practice)
        return pricer.price(pricer.draft(pricer.outline(layout))).step_s

    split, sharded = Layout(tp=4, dp=4, micro_batch=2), Layout(dp=16, zero=3, micro_batch=2)
    for slower in (Practice(fused=False), Practice(fused_norms=False), Practice(overlap_tp=False), Practice(gathered_logits=True)):
        assert step_s(slower, split) > step_s(RAYPLANE, split), slower
    for slower in (Practice(overlap_dp=False), Practice(gathered_copies=18), Practice(calls_per_layer=12)):
        assert step_s(slower, sharded) > step_s(RAYPLANE, sharded), slower
    assert step_s(Practice(fused_accumulation=True), split) < step_s(RAYPLANE, split)


def test_products_in_fp8_are_faster_and_their_casts_are_paid() -> None:
    wide, narrow = (price(MODEL, replace(WORK, precision=p), H100S, Layout(micro_batch=4)) for p in ("bf16", "fp8"))
    assert 0.5 * wide.step_s < narrow.step_s < wide.step_s
    assert narrow.memory["optimizer"] == wide.memory["optimizer"]


@pytest.mark.parametrize(("name", "waiting_s", "rolling_s"), [("zb-h1", 99.0, 99.0), ("zb-h2", 99.0, 96.0)])
def test_rolling_steps_wait_for_no_other_stage(name: str, waiting_s: float, rolling_s: float) -> None:
    """32 microbatches of F = I = W = 1 on 4 stages: ZB-H2 then idles nowhere (Qi et al., section 2.2)."""
    pricer = Pricer(MODEL, WORK, H100S)
    outline = pricer.outline(cut((1, 4, 1, (name, 1))))
    ones = (1.0,) * 4
    pipe = Pipe(stage_of=(0, 1, 2, 3), forward_s=ones, input_s=ones, weight_s=ones, p2p_s=(0.0,) * 3, reduce_s=(0.0,) * 4)
    found = [length_s(pipe, outline, pricer.orders, rolling) for rolling in (False, True)]
    assert found == [waiting_s, rolling_s]


def test_rolling_shortens_a_priced_step_and_its_terms_still_sum() -> None:
    layout = cut((1, 4, 1, ("zbv", 2)), 8)
    found = []
    for practice in (RAYPLANE, replace(RAYPLANE, rolling=True)):
        pricer = Pricer(MODEL, WORK, H100S, practice)
        found.append(pricer.price(pricer.draft(pricer.outline(layout))))
    waiting, rolling = found
    assert rolling.step_s <= waiting.step_s
    assert sum(rolling.time_s.values()) == pytest.approx(rolling.step_s)


def test_weight_gradients_that_are_put_off_hide_no_sum_over_tp() -> None:
    at_once, later = (price(MODEL, WORK, H100S, cut((1, 4, 2, (name, 1)))).time_s["tp"] for name in ("1f1b", "zb-h1"))
    assert at_once < later
