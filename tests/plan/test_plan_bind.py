"""A placement made anew on what is free: tp groups as near as the job allows, stages on their kinds, ranks in topology order."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.choice.bind import Bound, bind, reach_of, room_in
from rayplane.plan.choice.place import place
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.cluster import REACHES, Node
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

NOT_PLANNED = Placement(())


def nodes(text: str, kind: str = "h100-sxm") -> list[Node]:
    """Nodes as NAME@ISLAND@RACK:DEVICES, what is left out being the name itself and no rack."""
    out = []
    for word in text.split():
        where, _, devices = word.partition(":")
        name, island, rack = (*where.split("@"), "", "")[:3]
        out.append(Node(name, int(devices), kind, island or name, 0, rack))
    return out


def where(bound: Bound | None) -> list[tuple[str, tuple[int, ...]]]:
    assert bound is not None
    return [(slot.node, slot.ranks) for slot in bound.placement.slots]


def test_what_was_planned_is_kept_while_there_is_room():
    layout, cluster = Layout(dp=2, tp=2), homogeneous({"a": 4, "b": 4}, "h100-sxm", 1, {})
    planned = place(layout, cluster)
    assert bind(layout, planned, cluster.nodes, "island") == Bound(planned, "island")


def test_stages_go_where_room_is_left():
    layout, cluster = Layout(pp=2, tp=4), homogeneous({"a": 4, "b": 4}, "h100-sxm", 1, {})
    planned = place(layout, cluster)
    assert where(bind(layout, planned, nodes("a:4 b:0 c:4"), "island")) == [("a", (0, 1, 2, 3)), ("c", (4, 5, 6, 7))]
    assert bind(layout, planned, nodes("a:4 b:2 c:2"), "island") is None


@pytest.mark.parametrize("order", list(permutations(["a@x:2", "b@y:2", "c@x:2", "d@y:2"])))
def test_tp_groups_lie_inside_islands_whatever_the_order_of_nodes(order):
    bound = bind(Layout(dp=2, tp=4), NOT_PLANNED, nodes(" ".join(order)), "island")
    assert bound is not None and bound.reach == "island"
    groups = {replica: {slot.island for slot in bound.placement.slots if slot.replica == replica} for replica in range(2)}
    assert sorted(map(sorted, groups.values())) == [["x"], ["y"]]


def test_unequal_islands_give_what_they_have():
    bound = bind(Layout(dp=5, tp=2), NOT_PLANNED, nodes("a:5 b:3 c:1 d:4"), "island")
    assert Counter(slot.node for slot in bound.placement.slots) == {"a": 2, "b": 1, "d": 2}
    assert bind(Layout(dp=6, tp=2), NOT_PLANNED, nodes("a:5 b:3 c:1 d:4"), "island") is None


def test_the_smallest_island_that_holds_everything_is_taken():
    assert where(bind(Layout(dp=2, tp=2), NOT_PLANNED, nodes("a:8 b:4 c:6"), "island")) == [("b", (0, 1)), ("b", (2, 3))]
    assert {node for node, _ in where(bind(Layout(dp=4), NOT_PLANNED, nodes("a:1 b:1 c:1 d:4"), "island"))} == {"d"}


def test_ranks_follow_topology_though_larger_islands_are_preferred():
    assert where(bind(Layout(dp=3, tp=2), NOT_PLANNED, nodes("a:2 b:4"), "island")) == [("a", (0, 1)), ("b", (2, 3)), ("b", (4, 5))]


def test_a_group_goes_beyond_its_island_only_as_far_as_it_may():
    free = nodes("a@a@r:3 b@b@r:3 c@c@s:2")
    assert bind(Layout(tp=4), NOT_PLANNED, free, "island") is None
    assert bind(Layout(tp=4), NOT_PLANNED, free, "rack").reach == "rack"
    assert {node for node, _ in where(bind(Layout(tp=4), NOT_PLANNED, free, "anywhere"))} == {"a", "b"}
    assert bind(Layout(tp=8), NOT_PLANNED, free, "rack") is None
    assert bind(Layout(tp=8), NOT_PLANNED, free, "anywhere").reach == "anywhere"


def test_nodes_without_a_rack_are_not_near_each_other():
    assert bind(Layout(tp=4), NOT_PLANNED, nodes("a:2 b:2"), "rack") is None


def test_islands_of_one_machine_are_in_one_rack():
    assert bind(Layout(tp=4), NOT_PLANNED, nodes("n@n/0:2 n@n/2:2"), "rack").reach == "rack"


def test_cp_may_leave_an_island_where_tp_may_not():
    bound = bind(Layout(cp=2, tp=4), NOT_PLANNED, nodes("a:5 b:4"), "island")
    assert bound is not None and bound.reach == "island"
    assert where(bound) == [("a", (0, 1, 2, 3)), ("b", (4, 5, 6, 7))]


def test_stages_stay_on_their_kind_of_device():
    layout = Layout(pp=2, tp=2)
    mixed = [*nodes("a:2", "a100-80gb"), *nodes("b:2")]
    planned = place(layout, replace(homogeneous({"x": 1}, "h100-sxm", 1, {}), nodes=tuple(replace(n, memory_bytes=8) for n in mixed)))
    kinds = {slot.stage: slot.node for slot in planned.slots}
    free = [*nodes("a:2 c:2", "a100-80gb"), *nodes("b:0 d:2")]
    moved = bind(layout, planned, free, "island")
    assert moved is not None
    assert {slot.stage: slot.node for slot in moved.placement.slots} == {s: {"a": "a", "b": "d"}[node] for s, node in kinds.items()}
    assert bind(layout, planned, [*nodes("a:2 c:8", "a100-80gb"), *nodes("b:0")], "island") is None


def test_places_are_listed_by_size():
    free = nodes("a@x@r:4 b@x@r:2 c@c@r:1")
    assert [place[:2] for place in room_in(free, "island")] == [("x", 6), ("c", 1)]
    assert list(room_in(free, "rack")) == [("r", 7, (("a", 4), ("b", 2), ("c", 1)))]


some_nodes = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("rs"), st.integers(0, 9)), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(some_nodes, st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 6), st.sampled_from(REACHES))
def test_a_binding_takes_no_device_twice_and_goes_no_farther_than_it_may(found, dp, pp, cp, tp, reach):
    free = [Node(f"n{i}", devices, "h100-sxm", f"{rack}{island}", 0, rack) for i, (island, rack, devices) in enumerate(found)]
    layout = Layout(dp=dp, pp=pp, cp=cp, tp=tp)
    bound = bind(layout, NOT_PLANNED, free, reach)
    room = sum(devices // tp for _, devices, _ in room_in(free, reach))
    assert (bound is not None) == (room >= dp * pp * cp)
    if bound is None:
        return
    slots = bound.placement.slots
    assert [rank for slot in slots for rank in slot.ranks] == list(range(layout.size))
    assert all(sum(len(slot.ranks) for slot in slots if slot.node == node.name) <= node.devices for node in free)
    assert REACHES.index(reach_of(layout, bound.placement, free)) <= REACHES.index(bound.reach) <= REACHES.index(reach)
