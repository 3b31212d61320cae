"""What is missing, in words."""

import pytest

from rayplane.runtime.ray.shortage import Want, shortage
from rayplane.spec.cluster import Node
from rayplane.spec.layout import Layout


def node(name: str, devices: int, island: str = "", rack: str = "") -> Node:
    return Node(name, devices, "h100-sxm", island or name, 0, rack)


UNEQUAL = [node("a", 4, "x"), node("b", 2, "x"), node("c", 5)]


@pytest.mark.parametrize(
    ("layout", "resource", "each", "reach", "words"),
    [
        (Layout(dp=4, tp=8), "GPU", 1, "island", "4 x 8 GPU, each in one island"),
        (Layout(dp=2, pp=2, tp=8), "GPU", 1, "rack", "4 x 8 GPU, each in one rack"),
        (Layout(tp=8), "GPU", 1, "island", "8 GPU in one island"),
        (Layout(tp=8), "GPU", 1, "anywhere", "8 GPU anywhere"),
        (Layout(dp=3), "GPU", 1, "island", "3 GPU"),
        (Layout(), "GPU", 1, "island", "1 GPU on one node"),
        (Layout(dp=3), "CPU", 4, "island", "3 x 4 CPU, each on one node"),
        (Layout(dp=3, tp=2), "CPU", 4, "island", "3 x 8 CPU, each in one island"),
    ],
)
def test_what_is_wanted_is_counted_in_groups(layout, resource, each, reach, words):
    assert str(Want.of(layout, resource, each, reach)) == words


def test_a_group_larger_than_any_island_names_the_largest_and_its_nodes():
    want = Want.of(Layout(dp=4, tp=8), "GPU", 1, "island")
    assert shortage(want, UNEQUAL, "free ") == "the largest free island has 6 (node a: 4, node b: 2)"
    assert shortage(want, UNEQUAL) == "the largest island has 6 (node a: 4, node b: 2)"


def test_too_many_groups_name_what_has_room():
    want = Want.of(Layout(dp=4, tp=3), "GPU", 1, "island")
    assert shortage(want, UNEQUAL, "free ") == "there is free room for 3: 6 (node a: 4, node b: 2), 5 (node c: 5)"


def test_many_islands_and_nodes_are_not_all_named():
    many = [node(f"n{i}", 4, "x") for i in range(6)] + [node(f"m{i}", 9) for i in range(4)]
    said = shortage(Want.of(Layout(dp=30, tp=4), "GPU", 1, "island"), many)
    assert said == (
        "there is room for 14: 24 (node n0: 4, node n1: 4, node n2: 4, 3 nodes more), 9 (node m0: 9), 9 (node m1: 9), 2 smaller ones"
    )


def test_racks_and_clusters_are_places_too():
    racked = [node("a", 4, rack="r"), node("b", 3, rack="r"), node("c", 2)]
    assert shortage(Want.of(Layout(tp=8), "GPU", 1, "rack"), racked) == "the largest rack has 7 (node a: 4, node b: 3)"
    assert shortage(Want.of(Layout(tp=16), "GPU", 1, "anywhere"), racked) == "the cluster has 9 (node a: 4, node b: 3, node c: 2)"


def test_cores_are_counted_as_cores():
    assert shortage(Want.of(Layout(tp=2), "CPU", 4, "island"), [node("a", 1)]) == "the largest island has 4 (node a: 4)"


def test_nothing_is_said_to_be_nothing():
    want = Want.of(Layout(), "GPU", 1, "island")
    assert shortage(want, []) == "no GPU is there"
    assert shortage(want, [node("a", 0)], "free ") == "no GPU is free"


def test_room_on_the_wrong_kind_is_no_room():
    said = shortage(Want.of(Layout(tp=2), "GPU", 1, "island"), [node("a", 4)], "free ")
    assert said == "there are 4 (node a: 4), but not of the kinds that stages were planned for"
