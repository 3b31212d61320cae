"""Ranks, stage actors and places that outlive a failure: dummies on an embedded Ray."""

import os
import signal
import time
from dataclasses import replace

from dummies import all_started, collect, ranks_of, runs
from ray.util.placement_group import placement_group_table

from rayplane.runtime.group import Launch
from rayplane.runtime.ray import RayGroup
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

LONG_S = 20.0
"""No test waits for it: who is to answer does so at once."""


def stages(count: int = 2) -> Launch:
    slots = tuple(Slot(0, stage, 0, (2 * stage, 2 * stage + 1), "", "") for stage in range(count))
    return Launch("dummy", Layout(pp=count, tp=2), Placement(slots), "dummy_rank", {"does": "step"})


def standing() -> set[str]:
    return {key for key, group in placement_group_table().items() if group["state"] == "CREATED"}


def kept(before: dict[int, int], after: dict[int, int]) -> set[int]:
    return {rank for rank in after if before.get(rank) == after[rank]}


def test_survivors_keep_their_process_actor_and_place(group: RayGroup) -> None:
    group.start(stages())
    pids, actors, places = all_started(group), group.actor_pids, standing()
    os.kill(pids[2], signal.SIGKILL)
    collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    assert group.recall(LONG_S) == {0, 1, 3}
    group.start(stages())
    came = collect(group, lambda seen: len(ranks_of(seen, "step")) == 4)
    again = {m.rank: m.message["pid"] for m in came if m.message["type"] == "started"}
    assert kept(pids, again) == {0, 1, 3}
    assert (group.actor_pids, standing()) == (actors, places)
    for rank in range(4):
        mine = [m.message for m in came if m.rank == rank]
        assert mine[0]["type"] == "started" and [m["step"] for m in mine[1:]] == list(range(1, len(mine)))


def test_lost_actor_gets_a_new_one_in_its_bundle(group: RayGroup) -> None:
    group.start(stages())
    pids, actors, places = all_started(group), group.actor_pids, standing()
    os.kill(actors[1], signal.SIGKILL)
    collect(group, lambda seen: len(ranks_of(seen, "lost")) == 2)
    assert group.recall(LONG_S) == {0, 1}
    group.start(stages())
    assert kept(pids, all_started(group)) == {0, 1}
    assert group.actor_pids[0] == actors[0] and group.actor_pids[1] != actors[1]
    assert standing() == places


def test_stopped_actor_is_ended_and_its_ranks_with_it(group: RayGroup) -> None:
    group.start(stages())
    pids, actors = all_started(group), group.actor_pids
    os.kill(actors[0], signal.SIGSTOP)
    began_s = time.monotonic()
    assert group.recall(1.0) == {2, 3}
    assert time.monotonic() - began_s < 15.0
    group.start(stages())
    assert kept(pids, all_started(group)) == {2, 3}
    assert group.actor_pids[1] == actors[1] and not runs(pids[0])


def test_fewer_stages_go_on_where_they_are_and_grow_again(group: RayGroup) -> None:
    group.start(stages())
    pids, places = all_started(group), standing()
    assert group.recall(LONG_S) == {0, 1, 2, 3}
    group.start(stages(1))
    assert all_started(group, 2) == {rank: pids[rank] for rank in (0, 1)}
    assert not runs(pids[2]) and not runs(pids[3]) and standing() == places
    assert group.recall(LONG_S) == {0, 1}
    group.start(stages())
    assert kept(pids, all_started(group)) == {0, 1} and standing() == places


def test_launch_that_wants_other_places_begins_anew(group: RayGroup) -> None:
    group.start(stages())
    pids = all_started(group)
    assert group.recall(LONG_S) == {0, 1, 2, 3}
    group.start(replace(stages(), placement=Placement((Slot(0, 0, 0, (0, 1, 2, 3), "", ""),))))
    assert kept(pids, all_started(group)) == set()
    assert not any(map(runs, pids.values()))


def test_recall_of_what_was_killed_finds_nobody(group: RayGroup) -> None:
    assert group.recall(LONG_S) == frozenset()
    group.start(stages())
    pids = all_started(group)
    group.kill()
    assert group.recall(LONG_S) == frozenset()
    group.start(stages())
    assert kept(pids, all_started(group)) == set()
