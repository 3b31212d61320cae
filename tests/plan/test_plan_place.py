"""Where stages go: tp groups inside nodes and islands, ranks in topology order, or the exact shortage."""

import pytest

from rayplane.errors import PlacementError
from rayplane.plan.catalog import homogeneous
from rayplane.plan.place import place
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout


def cluster(nodes: dict[str, int], islands: dict[str, str] | None = None) -> ClusterSpec:
    return homogeneous(nodes, "h100-sxm", 80 * 10**9, islands or {})


def where(layout: Layout, on: ClusterSpec) -> list[tuple[int, int, int, tuple[int, ...], str]]:
    return [(s.replica, s.stage, s.part, s.ranks, s.node) for s in place(layout, on).slots]


def test_a_replica_fills_a_node_before_the_next_begins() -> None:
    assert where(Layout(dp=2, pp=2, tp=2), cluster({"a": 4, "b": 4})) == [
        (0, 0, 0, (0, 1), "a"),
        (0, 1, 0, (2, 3), "a"),
        (1, 0, 0, (4, 5), "b"),
        (1, 1, 0, (6, 7), "b"),
    ]


def test_a_group_that_spans_nodes_of_its_island_has_a_part_on_each() -> None:
    on = cluster({"a": 4, "b": 4}, {"a": "nvl", "b": "nvl"})
    assert where(Layout(tp=8), on) == [(0, 0, 0, (0, 1, 2, 3), "a"), (0, 0, 1, (4, 5, 6, 7), "b")]


def test_groups_do_not_straddle_nodes_while_nodes_have_room() -> None:
    assert [slot[4] for slot in where(Layout(dp=2, tp=2), cluster({"a": 3, "b": 3}))] == ["a", "b"]


def test_what_islands_leave_over_is_joined_last() -> None:
    slots = where(Layout(dp=3, tp=2), cluster({"a": 3, "b": 3}))
    assert sorted(rank for slot in slots for rank in slot[3]) == list(range(6))
    assert sum(len(slot[3]) < 2 for slot in slots) == 2


def test_the_shortage_is_exact() -> None:
    with pytest.raises(PlacementError, match="needs 16 devices, the cluster has 6: 10 missing"):
        place(Layout(dp=16), cluster({"a": 6}))


def test_every_rank_has_one_device_and_no_device_two() -> None:
    on = cluster({f"n{i}": 8 for i in range(8)})
    layout = Layout(dp=4, pp=4, tp=4)
    slots = place(layout, on).slots
    assert sorted(r for s in slots for r in s.ranks) == list(range(64))
    assert all(sum(len(s.ranks) for s in slots if s.node == n.name) == 8 for n in on.nodes)
