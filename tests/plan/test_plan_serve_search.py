"""The cheapest layout that serves a demand: it holds the limits, nothing cheaper does, and every other has its reason."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.errors import PlacementError, RayplaneError, SpecError
from rayplane.plan.machine.catalog import described, device
from rayplane.plan.machine.cores import Machines
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.engine import RAYPLANE
from rayplane.plan.serving.kv import room
from rayplane.plan.serving.load import Load, percentile, play, saturating
from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.serve_plan import Demand
from rayplane.plan.serving.serve_price import Entry, sustained
from rayplane.plan.serving.serve_search import Pinned, plan_serving
from rayplane.plan.serving.served import Cut, Formats, Served, known
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.cluster_section import ClusterSection, NodeSection
from rayplane.spec.model import ModelSpec

CHAT = Demand(prompt=1024, output=256, rate=5.0, ttft_s=0.5, tpot_s=0.05)
LARGE = replace(known("llama-3.1-70b"), formats=Formats("fp8", "fp8", "fp8"))


def cluster(nodes: int = 1, devices: int = 8, kind: str = "h100-sxm") -> ClusterSpec:
    return described(ClusterSection(nodes=[NodeSection(device=kind, devices=devices, count=nodes, name="n")]))


def test_what_one_device_can_serve_costs_one_device() -> None:
    plan = plan_serving(known("llama-3.1-8b"), CHAT, cluster())
    assert (str(plan.best.cut), plan.best.replicas, plan.best.devices) == ("1 device", 1, 1)
    assert plan.best.ttft_s <= CHAT.ttft_s and plan.best.tpot_s <= CHAT.tpot_s


def test_a_higher_rate_takes_more_replicas_and_a_tighter_limit_wider_ones() -> None:
    busy = plan_serving(known("llama-3.1-8b"), replace(CHAT, rate=100), cluster())
    assert busy.best.replicas > 1
    quick = plan_serving(known("llama-3.1-8b"), replace(CHAT, tpot_s=0.005), cluster())
    assert quick.best.cut.tp > 1


def test_one_replica_fewer_would_miss_the_limits() -> None:
    demand = replace(CHAT, rate=200)
    model, where = known("llama-3.1-8b"), cluster()
    best = plan_serving(model, demand, where).best
    h100 = device("h100-sxm")
    replica = Replica(model, best.cut, Network(where.links, h100), 8)
    load = Load(1024, 256, rate=demand.rate / (best.replicas - 1), requests=2000, warm=0.3)
    played = play(replica, room(replica, h100.memory_bytes), load)
    assert percentile(played.ttft_s, 0.95) > demand.ttft_s or percentile(played.tpot_s, 0.95) > demand.tpot_s


def test_what_does_not_fit_a_device_is_cut_and_the_reason_kept() -> None:
    plan = plan_serving(LARGE, CHAT, cluster())
    assert plan.best.cut.size > 1
    reasons = {str(r.cut): r.reason for r in plan.refused}
    assert reasons["1 device"].startswith("weights 72.7 GB and workspace")


def test_every_cut_is_an_option_or_has_a_reason() -> None:
    plan = plan_serving(LARGE, CHAT, cluster())
    seen = [plan.best.cut, *(o.cut for o in plan.runners_up), *(r.cut for r in plan.refused)]
    assert (
        len(seen) == len(set(seen)) == sum(1 for tp in range(1, 9) for pp in (1, 2, 4, 8) for cp in (1, 2, 4, 8) if tp * pp * cp <= 8)
    )
    assert all(r.reason for r in plan.refused)


def test_nothing_that_lost_is_cheaper() -> None:
    plan = plan_serving(LARGE, replace(CHAT, rate=40), cluster(4))
    assert all(o.devices >= plan.best.devices for o in plan.runners_up)
    assert [o.devices for o in plan.runners_up] == sorted(o.devices for o in plan.runners_up)


def test_stages_of_every_replica_have_a_place_of_their_own() -> None:
    plan = plan_serving(LARGE, replace(CHAT, rate=40), cluster(4))
    ranks = [rank for slot in plan.placement.slots for rank in slot.ranks]
    assert sorted(ranks) == list(range(plan.best.devices))


def test_nine_heads_need_not_divide() -> None:
    model = ModelSpec(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocab=49152, tied=True)
    demand = Demand(prompt=64, output=32, rate=1.0, ttft_s=3.0, tpot_s=0.05)
    thirds = plan_serving(Served(model), demand, cluster(1, 3, "cpu"), pinned=Pinned(Cut(tp=2), 1)).best
    assert (thirds.layout.tp, thirds.misses) == (2, ())


def test_a_limit_that_no_layout_holds_says_what_is_in_the_way() -> None:
    with pytest.raises(
        PlacementError, match=r"no layout serves ttft <= 500 ms, tpot <= 1 ms, .* a token takes \S+ ms with nobody else"
    ):
        plan_serving(known("llama-3.1-8b"), replace(CHAT, tpot_s=0.001), cluster())


def test_a_rate_that_the_cluster_does_not_carry_says_what_it_does() -> None:
    with pytest.raises(
        PlacementError, match=r"8 devices do not serve .*10000 requests/s.* Most is to be had of .*about \d+ requests/s"
    ):
        plan_serving(known("llama-3.1-8b"), replace(CHAT, rate=10000), cluster())


def test_a_model_that_fits_nowhere_says_what_it_needs() -> None:
    with pytest.raises(PlacementError, match=r"weights \S+ GB and workspace \S+ GB leave nothing"):
        plan_serving(known("llama-3.1-405b"), CHAT, cluster())


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"rate": 0.0}, "serve.rate"),
        ({"rate": float("inf")}, "serve.rate"),
        ({"prompt": 0}, "serve.prompt"),
        ({"tpot_s": -1.0}, "serve.tpot_s"),
        ({"share": 1.5}, "serve.share"),
    ],
)
def test_a_demand_that_makes_no_sense_is_named(changed: dict[str, float], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        plan_serving(known("llama-3.1-8b"), replace(CHAT, **changed), cluster())


def test_no_devices_is_an_error_and_no_traceback() -> None:
    with pytest.raises(SpecError, match="no devices"):
        plan_serving(known("llama-3.1-8b"), CHAT, replace(cluster(), nodes=()))


@pytest.mark.parametrize(("cut", "prompt", "output"), [(Cut(), 1024, 256), (Cut(tp=2), 4096, 512), (Cut(pp=2), 256, 256)])
def test_the_estimate_of_a_full_batch_is_near_what_it_plays(cut: Cut, prompt: int, output: int) -> None:
    h100 = device("h100-sxm")
    engine = replace(RAYPLANE, reserve=1.0)  # nothing is computed twice
    replica = Replica(known("llama-3.1-8b"), cut, Network(h100.links, h100), 8, engine)
    free = room(replica, h100.memory_bytes)
    at_once = saturating(replica, free, prompt, output)
    played = play(replica, free, Load(prompt, output, at_once, requests=12 * at_once, spread=0.05))
    estimate = sustained(Entry(replica, free, Machines.of(cluster(), h100)), Demand(prompt, output, 1.0))
    assert 0.9 < estimate / (played.tokens_s / output) < 1.25  # at most as much as SLACK allows for


def test_the_same_demand_gives_the_same_plan() -> None:
    demand = replace(CHAT, rate=30)
    assert plan_serving(LARGE, demand, cluster(2)) == plan_serving(LARGE, demand, cluster(2))


def test_a_faster_memory_never_costs_more() -> None:
    demand = replace(CHAT, rate=30)
    assert plan_serving(LARGE, demand, cluster(2, kind="h200")).best.devices <= plan_serving(LARGE, demand, cluster(2)).best.devices


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 20000),
    st.integers(1, 2000),
    st.floats(0.01, 500),
    st.floats(0.01, 10),
    st.floats(0.001, 0.2),
    st.sampled_from(["cpu", "a100-40gb", "h100-sxm", "b200"]),
    st.integers(1, 9),
)
def test_any_demand_gives_a_plan_or_a_clear_error(
    prompt: int, output: int, rate: float, ttft_s: float, tpot_s: float, kind: str, devices: int
) -> None:
    try:
        plan = plan_serving(known("llama-3.2-1b"), Demand(prompt, output, rate, ttft_s, tpot_s), cluster(1, devices, kind))
    except RayplaneError as error:
        assert str(error)
    else:
        assert plan.best.devices <= devices
        assert plan.best.ttft_s <= ttft_s and plan.best.tpot_s <= tpot_s


def test_groups_of_five_leave_no_room_for_a_second_one_on_a_node_of_eight() -> None:
    busy = replace(CHAT, rate=60, ttft_s=0.3, tpot_s=0.025)
    of = plan_serving(known("llama-3.1-70b"), busy, cluster(8))
    for option in (of.best, *of.runners_up):
        cells = 8 // (option.cut.tp * option.cut.cp) * 8
        assert option.replicas * option.cut.pp <= cells
    islands = {slot.ranks[0] // of.best.cut.tp: slot.island for slot in of.placement.slots}
    assert len(islands) == len(of.placement.slots), "each group lies in one island"


def test_a_hundred_thousand_devices_are_planned_in_seconds() -> None:
    many = cluster(12500)
    plan = plan_serving(known("llama-3.1-8b"), replace(CHAT, rate=5000), many)
    assert 100 < plan.best.devices < 5000


@pytest.mark.parametrize("rate", [None, 5.0, 1000.0])
def test_no_more_devices_than_are_allowed(rate: float | None) -> None:
    """Whatever the rule; a cut that takes more is refused with the field's name."""
    few = replace(CHAT, rate=rate, most_devices=3)
    plan = plan_serving(known("llama-3.1-8b"), few, cluster(), or_nearest=True)
    assert plan.best.devices <= 3 and all(option.devices <= 3 for option in plan.runners_up)
    assert "limits.max_devices: 1 x tp4 takes 4, allowed are 3" in {refused.reason for refused in plan.refused}
    with pytest.raises(PlacementError, match=r"1 x tp4 needs 4 devices, limits\.max_devices is 3; use a cut of at most 3 devices"):
        plan_serving(known("llama-3.1-8b"), few, cluster(), pinned=Pinned(Cut(tp=4)))
