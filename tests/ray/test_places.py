"""Places on a cluster of unequal islands (`islands.py` has its picture): where groups land, who waits, and what is said."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import islands
import pytest

from rayplane.spec.layout import Layout

ISLANDS = {"a": "x", "b": "x", "c": "y", "d": "d"}
ANSWER_S = 120.0


@pytest.fixture(scope="module")
def there() -> Iterator[Callable[..., Any]]:
    """Runs a function of `islands` beside its cluster; this process has a Ray of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:

        def run(function: Callable[..., Any], *arguments: object) -> Any:
            return process.submit(function, *arguments).result(ANSWER_S)

        run(islands.start)
        yield run
        run(islands.stop)


def groups(slots: list[tuple[int, str, tuple[int, ...]]]) -> dict[int, set[str]]:
    """Islands of each replica."""
    out: dict[int, set[str]] = {}
    for replica, node, _ in slots:
        out.setdefault(replica, set()).add(ISLANDS[node])
    return out


def test_tp_groups_land_inside_islands_and_ranks_follow_topology(there):
    reach, slots = there(islands.place_job, Layout(dp=5, tp=2))
    assert reach == "island"
    assert sorted(map(sorted, groups(slots).values())) == [["x"], ["x"], ["x"], ["y"], ["y"]]
    assert [rank for _, _, ranks in slots for rank in ranks] == list(range(10))
    order = [node for _, node, _ in slots]
    assert all(order.index(node) + order.count(node) > last for last, node in enumerate(order)), "each node's ranks are neighbours"


def test_a_group_over_two_nodes_of_an_island_has_a_part_on_each(there):
    _, slots = there(islands.place_job, Layout(tp=6))
    assert sorted((node, len(ranks)) for _, node, ranks in slots) == [("a", 4), ("b", 2)]


def test_what_can_never_have_a_place_is_refused_at_once_with_the_largest_island(there):
    message, took_s = there(islands.refusal, Layout(dp=4, tp=8))
    assert message.startswith("the job needs 4 x 8 GPU, each in one island; the largest island has 6 (node ")
    assert "(node a: 4, node b: 2)" in message or "(node b: 2, node a: 4)" in message
    assert message.endswith("Add nodes, choose a smaller layout, or let it spread with limits.fallback")
    assert took_s < 5.0


def test_one_group_too_many_names_what_has_room(there):
    message, _ = there(islands.refusal, Layout(dp=3, tp=4))
    assert "needs 3 x 4 GPU, each in one island; there is room for 2: 6 (" in message and "4 (node c: 4), 1 (node d: 1)" in message


def test_a_group_leaves_its_island_only_as_far_as_it_may(there):
    assert there(islands.place_job, Layout(tp=4), "anywhere")[0] == "island"
    reach, slots = there(islands.place_job, Layout(tp=6), "rack")
    assert reach == "island" and groups(slots) == {0: {"x"}}
    assert there(islands.falls_back, "rack") == ("rack", {"b", "c"})
    assert "needs 7 GPU in one rack; the largest rack has 6" in there(islands.refusal, Layout(tp=7), "rack")[0]
    reach, slots = there(islands.place_job, Layout(tp=11), "anywhere")
    assert (reach, {node for _, node, _ in slots}) == ("anywhere", {"a", "b", "c", "d"})


def test_a_busy_cluster_is_waited_for_and_what_is_missing_is_said(there):
    said, line_is_empty, given_up = there(islands.busy_then_freed)
    assert len(said) == 1
    assert said[0].startswith("the job waits in place 1 of 1: it needs 6 GPU in one island; the largest free island has 1 (node d: 1)")
    assert "big: 6" in said[0] and "small: 4" in said[0] and said[0].endswith("waiting up to 20 s for other jobs to end")
    assert line_is_empty
    assert "gave up after 0.2 s. Stop other jobs, or choose a smaller layout" in given_up


def test_waiting_jobs_are_served_by_priority_and_then_as_they_came(there):
    stood, got = there(islands.line_of_three)
    assert stood == got == ["urgent", "first", "second"]


def test_a_wait_that_is_given_up_leaves_nothing(there):
    assert there(islands.gives_up) == (True, True)


def test_a_thousand_stages_are_placed_soon(there):
    bundles, took_s, deciding_s = there(islands.a_thousand)
    print(f"{bundles} bundles placed in {took_s:.2f} s, of which {deciding_s:.2f} s went into deciding")
    assert bundles == 1000
    assert took_s < 10.0, "2 s where nothing else runs"


def test_a_survey_shows_who_holds_what_and_who_waits(there):
    nodes, waiting = there(islands.surveyed)
    assert nodes["c"] == ("", 4, 0, {"demo": 4})
    assert nodes["d"][2:] == (0, {}) or list(nodes["d"][3].values()) == [1]
    assert sum(held.get("pair", 0) for *_, held in nodes.values()) == 2
    assert waiting == [("later", 2, "6 GPU in one island")]


def test_ranks_move_to_a_free_island_and_each_has_the_gpu_of_its_place(there):
    found, gpus, moved = there(islands.ranks_on_gpus)
    assert len(found) == 3 and {"x", "y"} <= set(found)
    assert {node for node, _ in gpus.values()} == {"c"} == set(moved)
    assert [gpus[rank][1] for rank in range(4)] == ["0", "1", "2", "3"]
