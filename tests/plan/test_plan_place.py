"""Where stages go: tp groups inside nodes and islands, ranks in topology order, or the exact shortage."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.errors import PlacementError
from rayplane.plan.choice.lacking import lacking
from rayplane.plan.choice.place import place
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.cluster import ClusterSpec, Node
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


UNEQUAL = cluster({"a": 8, "b": 8, "c0": 4, "c1": 2, "d": 4}, {"c0": "c", "c1": "c"})
NVL72 = {f"n{i}": 4 for i in range(18)}


def spread(slots: list[tuple[int, int, int, tuple[int, ...], str]]) -> int:
    """Stages that lie on several nodes."""
    return sum(count > 1 for count in Counter((replica, stage) for replica, stage, *_ in slots).values())


def test_unequal_islands_hold_as_many_groups_as_they_have_room_for() -> None:
    found = where(Layout(dp=3, pp=2, tp=4), UNEQUAL)
    assert [(nodes, ranks) for *_, ranks, nodes in found] == [
        ("a", (0, 1, 2, 3)),
        ("a", (4, 5, 6, 7)),
        ("b", (8, 9, 10, 11)),
        ("b", (12, 13, 14, 15)),
        ("c0", (16, 17, 18, 19)),
        ("d", (20, 21, 22, 23)),
    ]


def test_an_island_with_a_node_missing_holds_smaller_groups() -> None:
    nodes = {name: devices for name, devices in NVL72.items() if name != "n7"}
    on = cluster(nodes, dict.fromkeys(nodes, "nvl"))
    assert len(where(Layout(tp=68), on)) == 17
    assert spread(where(Layout(dp=17, tp=4), on)) == 0
    assert lacking(Layout(dp=8, tp=8), on) == ""
    assert lacking(Layout(dp=9, tp=8), on) == (
        "dp9 tp8 needs 72 devices, the cluster has 68: 4 missing. It needs 9 groups of 8 devices in one island each, and there is room "
        "for 8; island nvl has 68 (node n0: 4, node n1: 4, node n2: 4, 14 nodes more), 4 short. Add 4 to nvl, or use dp 8"
    )


@pytest.mark.parametrize(
    "layout, message",
    [
        (
            Layout(dp=4, tp=8),
            "dp4 tp8 needs 32 devices, the cluster has 26: 6 missing. It needs 4 groups of 8 devices in one island each, and there is "
            "room for 2; island c has 6 (node c0: 4, node c1: 2), 2 short; island d has 4, 4 short. Add 2 to c and 4 to d, or use dp 2",
        ),
        (
            Layout(dp=3, tp=8),
            "It needs 3 groups of 8 devices in one island each, and there is room for 2; island c has 6 (node c0: 4, node c1: 2), "
            "2 short; island d has 4, 4 short. Add 2 to c, or use dp 2",
        ),
        (
            Layout(tp=16),
            "It needs 16 devices in one island, and no island has room; island a has 8, 8 short; island b has 8, 8 short; "
            "island c has 6 (node c0: 4, node c1: 2), 10 short; 1 more lack as much or more. Add 8 to a, or use tp 8",
        ),
        (
            Layout(dp=9, pp=2, tp=4),
            "dp9 pp2 tp4 needs 72 devices, the cluster has 26: 46 missing. It needs 18 groups of 4 devices in one island each, and "
            "there is room for 6; island c has 6 (node c0: 4, node c1: 2), 2 short. Add 2 to c and 11 islands of 4 devices, "
            "or use dp 3",
        ),
        (Layout(dp=30), "dp30 needs 30 devices, the cluster has 26: 4 missing. Add 4 devices, or use dp 26"),
        (Layout(dp=26), ""),
    ],
)
def test_what_is_lacking_is_said_group_by_group(layout: Layout, message: str) -> None:
    assert lacking(layout, UNEQUAL) == message


def test_groups_of_several_kinds_come_last() -> None:
    on = cluster({"a": 6, "b": 6}, {"a": "x", "b": "x"})
    mixed = replace(on, nodes=(on.nodes[0], replace(on.nodes[1], kind="a100-80gb")))
    # Of one kind there is room for two groups of 4, so no third is made of both.
    assert [slot[4] for slot in where(Layout(dp=2, tp=4), mixed)] == ["a", "b"]
    assert spread(where(Layout(dp=2, tp=4), mixed)) == 0
    assert spread(where(Layout(dp=3, tp=4), mixed)) == 1


nodes = st.lists(
    st.builds(
        Node,
        name=st.just(""),
        devices=st.integers(1, 9),
        kind=st.sampled_from(["h100-sxm", "a100-80gb", "cpu"]),
        island=st.sampled_from("xyz"),
        memory_bytes=st.sampled_from([40 * 10**9, 80 * 10**9]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(nodes, st.integers(1, 6), st.integers(1, 4), st.integers(1, 2), st.integers(1, 8))
def test_every_rank_has_a_device_of_its_own_or_the_shortage_is_said(found: list[Node], dp: int, pp: int, cp: int, tp: int) -> None:
    on = replace(cluster({"a": 1}), nodes=tuple(replace(n, name=f"n{i}") for i, n in enumerate(found)))
    layout = Layout(dp=dp, pp=pp, cp=cp, tp=tp)
    if layout.size > on.num_devices:
        with pytest.raises(PlacementError, match=f"{layout.size - on.num_devices} missing"):
            place(layout, on)
        return
    slots = place(layout, on).slots
    assert [rank for slot in slots for rank in slot.ranks] == list(range(layout.size))
    used = Counter[str]()
    for slot in slots:
        used[slot.node] += len(slot.ranks)
    assert all(used[node.name] <= node.devices for node in on.nodes)
    if not lacking(layout, on):
        kinds = {node.name: (node.island, node.kind) for node in on.nodes}
        groups: dict[tuple[int, int], set[tuple[str, str]]] = {}
        for slot in slots:
            groups.setdefault((slot.replica, slot.stage), set()).add(kinds[slot.node])
        assert all(len(group) == 1 for group in groups.values())
