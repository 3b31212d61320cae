"""Seconds of a serving round: bounds from bandwidth and arithmetic, what each axis changes, and what fits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.machine.catalog import device
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.engine import RAYPLANE, Engine
from rayplane.plan.serving.kv import room
from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.served import Cut, Formats, Served, known
from rayplane.spec.cluster import Link, Links

FP8 = Formats("fp8", "fp8", "fp8")
WHOLE, BF16 = Cut(), Formats()


def replica(
    name: str = "llama-3.1-8b", kind: str = "h100-sxm", cut: Cut = WHOLE, formats: Formats = BF16, engine: Engine = RAYPLANE
) -> Replica:
    of = device(kind)
    return Replica(replace(known(name), formats=formats), cut, Network(of.links, of), 8, engine)


def decode_s(of: Replica, sequences: int, context: int) -> float:
    return of.counts(sequences, 0, 0).total + of.cache_s(sequences, sequences * context)


@pytest.mark.parametrize(
    ("name", "kind", "formats", "gbytes"), [("llama-3.1-8b", "h100-sxm", Formats(), 15.0), ("llama-3.1-70b", "h200", FP8, 70.5)]
)
def test_one_token_takes_the_reading_of_the_weights_and_little_more(name: str, kind: str, formats: Formats, gbytes: float) -> None:
    at_least = gbytes / device(kind).hbm_gbytes_s
    assert at_least < decode_s(replica(name, kind, formats=formats), 1, 128) < 1.6 * at_least


def test_a_long_prompt_takes_its_arithmetic_and_little_more() -> None:
    of, tokens = replica(), 8192
    at_least = 2 * 6.98e9 * tokens / of.rate("bf16")
    assert at_least < of.counts(0, tokens, 1).weights < 1.25 * at_least


def test_the_cache_is_read_at_nearly_the_memory_bandwidth() -> None:
    gbytes = 1e6 * 2 * 32 * 8 * 128 * 2 / 1e9
    assert replica().cache_s(100, 1e6) == pytest.approx(gbytes / 3350, rel=0.1)


def test_fp8_halves_the_reading_and_int4_leaves_the_arithmetic() -> None:
    bf16, fp8, int4 = (replica(formats=f) for f in (Formats(), FP8, Formats("int4", "bf16")))
    assert fp8.counts(1, 0, 0).weights < 0.6 * bf16.counts(1, 0, 0).weights
    assert int4.counts(1, 0, 0).weights < 0.5 * bf16.counts(1, 0, 0).weights
    assert int4.counts(0, 8192, 1).weights == pytest.approx(bf16.counts(0, 8192, 1).weights, rel=0.05)


def test_tp_shortens_a_token_until_its_sums_and_kernels_are_all_that_is_left() -> None:
    times = [decode_s(replica("llama-3.1-70b", cut=Cut(tp=tp), formats=FP8), 8, 1024) for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[3] < 5
    terms = replica("llama-3.1-70b", cut=Cut(tp=8), formats=FP8).counts(8, 0, 0)
    assert terms.tp + terms.launch > terms.weights


def test_small_sums_are_bound_by_latency_and_large_ones_by_the_link() -> None:
    of = replica(cut=Cut(tp=8))
    assert of.sum_s(8, 1024) == pytest.approx(of.sum_s(8, 2048), rel=0.02)
    assert of.sum_s(8, 2e9) == pytest.approx(2 * of.sum_s(8, 1e9), rel=0.05)


def test_a_model_without_gap_between_attention_and_feed_forward_sums_once() -> None:
    once, twice = known("gpt-j-6b"), replace(known("gpt-j-6b"), parallel=False)
    h100 = device("h100-sxm")
    a, b = (Replica(of, Cut(tp=2), Network(h100.links, h100), 8).counts(4, 0, 0).tp for of in (once, twice))
    assert b == 2 * a


def test_pp_leaves_a_token_its_time_and_shares_a_full_batch() -> None:
    one, two = replica(), replica(cut=Cut(pp=2))
    assert decode_s(two, 2, 1024) == pytest.approx(decode_s(one, 1, 1024), rel=0.1)
    assert two.counts(0, 16384, 2).weights == pytest.approx(one.counts(0, 8192, 1).weights, rel=0.01)


def test_cp_shares_a_prompt_and_a_cache_but_not_the_weights() -> None:
    one, four = replica(), replica(cut=Cut(cp=4))
    assert four.prompt_s(0, 65536) == pytest.approx(one.prompt_s(0, 65536) / 4)
    assert four.cache_s(1, 65536) == pytest.approx(one.cache_s(1, 65536) / 4)
    assert four.counts(1, 0, 0).weights == one.counts(1, 0, 0).weights
    assert four.counts(1, 0, 0).cp > 0


def test_a_prompt_in_chunks_costs_the_same_attention() -> None:
    of = replica(kind="l40s")
    flat = replace(of.device, attention={"flash": ((1024, 0.4),)})
    of = Replica(of.served, of.cut, Network(flat.links, flat), 8)
    whole = of.prompt_s(0, 4096)
    assert sum(of.prompt_s(done, 1024) for done in range(0, 4096, 1024)) == pytest.approx(whole)


def test_window_bounds_what_decode_reads() -> None:
    windowed, full = known("mistral-7b"), replace(known("mistral-7b"), windowed=0.0)
    assert windowed.windowed == 0.0  # its published versions read all
    short = replace(full, model=replace(full.model, window=1024), windowed=1.0)
    h100 = device("h100-sxm")
    a, b = (Replica(of, Cut(), Network(h100.links, h100), 8) for of in (short, full))
    assert a.cache_s(4, 4 * 8192) == pytest.approx(b.cache_s(4, 4 * 1024))
    assert a.cache_s(4, 4 * 512) == b.cache_s(4, 4 * 512)


def test_few_tokens_read_few_experts_and_many_read_all() -> None:
    of = replica("qwen3-30b-a3b")
    few, many = of.counts(1, 0, 0).weights, of.counts(256, 0, 0).weights
    active, all_of_them = 3.0e9 * 2 / 3.35e12, 30e9 * 2 / 3.35e12
    assert active < few < 1.5 * active
    assert all_of_them < many < 1.5 * all_of_them


def test_tokens_travel_to_experts_only_where_ranks_have_sequences_of_their_own() -> None:
    together, apart = (replica("deepseek-v3", "h200", cut, FP8) for cut in (Cut(tp=8, ep=8), Cut(tp=8, ep=8, attention_dp=8)))
    assert together.counts(64, 0, 0).ep == 0 < apart.counts(64, 0, 0).ep
    assert apart.counts(64, 0, 0).tp == 0 < together.counts(64, 0, 0).tp


def test_prompts_wait_for_launches_and_decode_does_not() -> None:
    eager = replica(cut=Cut(tp=8), engine=replace(RAYPLANE, launch_us=1000.0))
    assert eager.counts(0, 64, 1).total >= 32 * 1e-3 > eager.counts(64, 0, 0).total


@pytest.mark.parametrize(
    ("name", "tp", "per_token"), [("llama-3.1-8b", 1, 131072), ("llama-3.1-70b", 8, 40960), ("deepseek-v3", 8, 61 * 576 * 2)]
)
def test_a_token_takes_its_keys_and_values_of_the_cache(name: str, tp: int, per_token: int) -> None:
    assert room(replica(name, cut=Cut(tp=tp)), 10**12).token_bytes == per_token


def test_what_does_not_fit_says_what_is_in_the_way() -> None:
    lack = room(replica("llama-3.1-70b"), 80 * 10**9)
    assert lack.tokens == 0
    assert lack.shortage.startswith("weights 141.1 GB and workspace 4.1 GB leave nothing of 72.0 GB")


@settings(deadline=None)
@given(st.integers(1, 512), st.integers(0, 8192), st.floats(1.1, 4))
def test_more_bandwidth_never_slows(decoding: int, prompt: int, times: float) -> None:
    of = device("h100-sxm")
    island = Link(of.links.island.gbytes_s * times, of.links.island.latency_us)
    faster = replace(of, hbm_gbytes_s=of.hbm_gbytes_s * times, links=replace(of.links, island=island))
    slow, quick = (Replica(known("llama-3.1-8b"), Cut(tp=2), Network(d.links, d), 8) for d in (of, faster))
    key = (decoding, prompt, min(prompt, 1))
    assert quick.counts(*key).total <= slow.counts(*key).total * (1 + 1e-12)
    assert quick.cache_s(decoding, 1000.0 * decoding) <= slow.cache_s(decoding, 1000.0 * decoding)


@settings(deadline=None)
@given(st.integers(10**9, 10**12), st.integers(1, 10**11))
def test_more_memory_never_refuses(device_bytes: int, more: int) -> None:
    of = replica()
    assert room(of, device_bytes + more).tokens >= room(of, device_bytes).tokens


@settings(deadline=None)
@given(st.integers(1, 256), st.integers(0, 4096))
def test_time_grows_with_layers_and_tokens(decoding: int, prompt: int) -> None:
    model, h100 = known("llama-3.1-8b"), device("h100-sxm")
    deeper = Served(replace(model.model, layers=64))
    a, b = (Replica(of, Cut(), Network(h100.links, h100), 8) for of in (model, deeper))
    once, twice = a.counts(decoding, prompt, 0), b.counts(decoding, prompt, 0)
    assert once.total < twice.total <= 2 * once.total + 1e-12
    assert a.counts(decoding + 1, prompt, 0).total >= once.total


def test_a_replica_over_two_islands_pays_for_the_fabric() -> None:
    links = Links(Link(450, 3.5), Link(64, 10), Link(12.5, 10))
    of = Network(links, device("h100-sxm"))
    inside, across = (Replica(known("llama-3.1-8b"), Cut(tp=8), of, island) for island in (8, 4))
    assert across.counts(32, 0, 0).tp > 2 * inside.counts(32, 0, 0).tp
