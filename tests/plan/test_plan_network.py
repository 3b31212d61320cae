"""Times of collectives and messages: the ring's formulas, measured bandwidths, and the link that binds."""

import pytest

from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.machine.network import Group, Network, beside_s
from rayplane.plan.machine.topology import topology
from rayplane.spec.cluster import Link, Links
from rayplane.spec.layout import Layout


def network(kind: str = "h100-sxm") -> Network:
    return Network(device(kind).links, device(kind))


@pytest.mark.parametrize(
    ("kind", "measured"),
    [
        ("a100-80gb", {8e6: 96, 34e6: 138, 134e6: 183, 537e6: 209}),
        ("h100-sxm", {8e6: 166, 34e6: 250, 134e6: 303, 537e6: 335}),
    ],
)
def test_all_gather_over_8_devices_is_near_the_measured_bus_bandwidth(kind: str, measured: dict[float, float]) -> None:
    for num_bytes, bus_gbytes_s in measured.items():
        predicted = num_bytes * 7 / 8 / network(kind).all_gather_s(Group(8, 8), num_bytes) / 1e9
        assert predicted == pytest.approx(bus_gbytes_s, rel=0.15)


def test_all_reduce_of_two_cpu_ranks_is_near_what_gloo_took() -> None:
    for num_bytes, seconds in {1e6: 2.7e-3, 16.8e6: 14.0e-3, 67.1e6: 48.8e-3}.items():
        assert network("cpu").all_reduce_s(Group(2, 2), num_bytes) == pytest.approx(seconds, rel=0.05)


def test_a_large_ring_moves_2_n_p_minus_1_over_p() -> None:
    slow = Links(Link(10, 0), Link(10, 0), Link(10, 0))
    net = Network(slow, device("a100-80gb"))
    for p in (2, 4, 7):
        expected = 2 * 1e9 * (p - 1) / p / (10e9 * net.device.ring_efficiency)
        assert net.all_reduce_s(Group(p, p), 1e9) == pytest.approx(expected)
        assert 2 * net.all_gather_s(Group(p, p), 1e9) == pytest.approx(expected)


def test_a_group_of_one_communicates_nothing() -> None:
    assert network().all_reduce_s(Group(1, 1), 1e9) == 0.0


def test_the_cards_of_all_members_in_an_island_carry_a_group_that_leaves_it() -> None:
    one, four = (network().binding(Group(16, n)).gbytes_s for n in (1, 4))
    assert (one, four) == (50, 200)
    assert network().binding(Group(16, 16)).gbytes_s == 450


def test_islands_hold_tp_first_then_pp_then_dp() -> None:
    topo = topology(homogeneous({f"n{i}": 8 for i in range(4)}, "h100-sxm", 1, {}))
    cut = Layout(dp=4, pp=4, tp=2)
    assert topo.tp_group(cut).inside
    assert topo.hops_inside(cut) == (True, True, True)
    assert topo.dp_group(cut).per_island == 1
    deep = Layout(dp=2, pp=8, tp=2)
    assert topo.hops_inside(deep) == (True, True, True, False, True, True, True)
    assert topo.dp_group(Layout(dp=32)).per_island == 8


def test_tp_that_leaves_its_island_is_bound_by_the_fabric() -> None:
    topo = topology(homogeneous({"a": 1, "b": 1}, "h100-sxm", 1, {}))
    assert not topo.tp_group(Layout(tp=2)).inside
    joined = topology(homogeneous({"a": 1, "b": 1}, "h100-sxm", 1, {"a": "x", "b": "x"}))
    assert joined.tp_group(Layout(tp=2)).inside


def test_a_ring_leaves_each_island_once_a_round() -> None:
    links = Links(Link(1e9, 3), Link(1e9, 3), Link(1e9, 20))
    net = Network(links, device("a100-80gb"))
    assert net.all_gather_s(Group(16, 16), 1) == pytest.approx(15 * 3e-6)
    assert net.all_gather_s(Group(16, 8), 1) == pytest.approx(15 / 16 * (14 * 3e-6 + 2 * 20e-6))
    assert net.all_gather_s(Group(16, 1), 1) == pytest.approx(15 * 20e-6)
    assert net.all_gather_s(Group(16, 8), 1, calls=5) == pytest.approx(5 * net.all_gather_s(Group(16, 8), 1))


def test_compute_hides_a_collective_but_for_what_it_takes_from_compute() -> None:
    assert beside_s(1.0, 10.0, overlap=0.0) == 1.0
    assert 0 < beside_s(1.0, 10.0, overlap=1.0) < 0.1
    assert 1.0 < beside_s(10.0, 10.0, overlap=1.0) < 3.0
    assert beside_s(10.0, 1.0, overlap=1.0) > 10.0, "what it hides is less than what it slows"


def test_replicas_next_to_each_other_share_more_cards() -> None:
    cluster = homogeneous({f"n{i}": 8 for i in range(4)}, "h100-sxm", 1, {})
    cut = Layout(dp=8, pp=2, tp=2)
    ours, others = topology(cluster), topology(cluster, dp_inside_pp=True)
    assert (ours.dp_group(cut).per_island, others.dp_group(cut).per_island) == (2, 4)
    assert (ours.hops_inside(cut), others.hops_inside(cut)) == ((True,), (False,))


def test_tp_groups_stay_inside_though_cp_does_not() -> None:
    topo = topology(homogeneous({f"n{i}": 8 for i in range(4)}, "h100-sxm", 1, {}))
    assert topo.tp_group(Layout(dp=2, cp=2, tp=8)).inside
    assert topo.cp_group(Layout(dp=2, cp=2, tp=8)).per_island == 1
