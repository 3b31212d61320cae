"""What must hold of every serving plan: better machines never lose, harder demands never cost less, and units agree."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.errors import PlacementError
from rayplane.plan.machine.catalog import described, device
from rayplane.plan.machine.cores import Machines
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.kv import room
from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.serve_plan import Demand
from rayplane.plan.serving.serve_price import Entry, first_s, priced, sustained, token_s
from rayplane.plan.serving.serve_search import Pinned, plan_serving
from rayplane.plan.serving.served import Cut, Formats, known
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, NodeSection

MODEL = known("llama-3.1-8b")
CHAT = Demand(prompt=512, output=128, rate=10.0, ttft_s=1.0, tpot_s=0.05)


def cluster(devices: int = 8, kind: str = "h100-sxm", memory_gb: float | None = None) -> ClusterSpec:
    return described(ClusterSection(nodes=[NodeSection(device=kind, devices=devices, name="n", memory_gb=memory_gb)]))


def entry(cut: Cut, times: float = 1.0) -> Entry:
    """A replica on a device whose memory and links are so many times as fast."""
    known_kind, where = device("h100-sxm"), cluster()
    links = replace(known_kind.links, island=replace(known_kind.links.island, gbytes_s=times * known_kind.links.island.gbytes_s))
    kind = replace(known_kind, hbm_gbytes_s=times * known_kind.hbm_gbytes_s, links=links)
    replica = Replica(MODEL, cut, Network(links, kind), 8)
    return Entry(replica, room(replica, kind.memory_bytes), Machines.of(where, kind))


def devices(demand: Demand, where: ClusterSpec) -> float:
    """What the plan costs; more than there is where there is none."""
    try:
        return plan_serving(MODEL, demand, where).best.devices
    except PlacementError:
        return float("inf")


cuts = st.sampled_from([Cut(), Cut(tp=2), Cut(tp=4), Cut(pp=2), Cut(cp=2), Cut(tp=2, pp=2), Cut(tp=3)])
prompts, outputs = st.integers(16, 4000), st.integers(2, 400)


@settings(max_examples=40, deadline=None)
@given(cuts, prompts, outputs, st.floats(1.05, 4))
def test_more_bandwidth_is_never_slower(cut: Cut, prompt: int, output: int, times: float) -> None:
    demand, slow, quick = Demand(prompt, output, 1.0), entry(cut), entry(cut, times)
    assert first_s(quick, demand) <= first_s(slow, demand) * (1 + 1e-9)
    assert token_s(quick, demand) <= token_s(slow, demand) * (1 + 1e-9)
    assert sustained(quick, demand) >= sustained(slow, demand) * (1 - 1e-9)


@settings(max_examples=12, deadline=None)
@given(st.floats(20, 120), st.floats(1.1, 4))
def test_more_memory_never_refuses(memory_gb: float, times: float) -> None:
    if devices(CHAT, cluster(2, memory_gb=memory_gb)) < float("inf"):
        assert devices(CHAT, cluster(2, memory_gb=memory_gb * times)) < float("inf")


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.floats(0.5, 150), st.floats(1.05, 4))
def test_a_higher_rate_never_takes_fewer_devices(rate: float, times: float) -> None:
    assert devices(replace(CHAT, rate=rate * times), cluster()) >= devices(replace(CHAT, rate=rate), cluster())


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.floats(0.05, 2), st.floats(0.005, 0.1), st.floats(0.2, 1), st.floats(0.2, 1), st.floats(1, 100))
def test_tighter_limits_never_take_fewer_devices(ttft_s: float, tpot_s: float, a: float, b: float, rate: float) -> None:
    loose = replace(CHAT, ttft_s=ttft_s, tpot_s=tpot_s, rate=rate)
    tight = replace(loose, ttft_s=a * ttft_s, tpot_s=b * tpot_s)
    assert devices(tight, cluster()) >= devices(loose, cluster())


@settings(max_examples=20, deadline=None)
@given(cuts, prompts, outputs, st.floats(0.1, 0.9))
def test_a_cached_prompt_is_never_slower(cut: Cut, prompt: int, output: int, cached: float) -> None:
    of, demand = entry(cut), Demand(prompt, output, 1.0)
    fewer = 1.05 if cut.cp > 1 else 1 + 1e-9  # a shorter prompt hides less of its keys' way round the ring
    assert first_s(of, replace(demand, cached=cached)) <= first_s(of, demand) * fewer
    assert sustained(of, replace(demand, cached=cached)) >= sustained(of, demand) / fewer


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_a_cache_in_8_bits_keeps_twice_as_many_tokens_and_is_read_in_half_the_time(kv: str) -> None:
    whole, half = (
        Replica(replace(MODEL, formats=Formats(kv=f)), Cut(), Network(device("h100-sxm").links, device("h100-sxm")), 8)
        for f in ("bf16", kv)
    )
    tokens = [room(of, 80 * 10**9).tokens for of in (whole, half)]
    assert tokens[1] == pytest.approx(2 * tokens[0], abs=1)
    assert half.cache_s(8, 8000) == pytest.approx(whole.cache_s(8, 8000) / 2)


def test_figures_of_a_plan_are_consistent() -> None:
    plan = plan_serving(MODEL, replace(CHAT, rate=40.0), cluster())
    best = plan.best
    assert best.tokens_s == 40.0 * 128
    assert best.devices == best.layout.size == sum(len(slot.ranks) for slot in plan.placement.slots)
    assert best.ttft.p50_s <= best.ttft.share_s <= best.ttft.p99_s
    assert best.tpot.p50_s <= best.tpot.share_s <= best.tpot.p99_s
    assert best.sequences * (CHAT.prompt + CHAT.output / 2) <= best.cache_tokens
    assert sum(best.boundaries) == MODEL.model.layers
    assert plan.saturated.tokens_s == pytest.approx(best.most_tokens_s, rel=0.25)
    assert plan.saturated.tpot_s > best.tpot.p50_s


def test_half_the_rate_on_half_the_replicas_meets_the_same() -> None:
    one, two = priced(entry(Cut()), CHAT, 1, 10.0), priced(entry(Cut()), CHAT, 2, 20.0)
    assert (one.ttft, one.tpot) == (two.ttft, two.tpot)
    assert two.tokens_s == 2 * one.tokens_s and two.most_tokens_s == 2 * one.most_tokens_s


def test_the_last_stage_has_fewer_layers_since_it_has_the_head() -> None:
    asked = Demand(prompt=64, output=16, rate=0.5)
    best = plan_serving(known("smollm2-135m"), asked, cluster(2, "cpu"), pinned=Pinned(Cut(pp=2), 1)).best
    first, last = best.boundaries
    assert first + last == 30 and first > last + 2
