"""Ranks that keep their process over a failure: dummies without torch."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from dummies import all_started, collect, eventually, exists, launch, ranks_of, runs

from rayplane.rank.lease import Lease, hold
from rayplane.runtime.group import RankMessage
from rayplane.runtime.lease import grant
from rayplane.runtime.local import LocalGroup
from rayplane.runtime.process import RankSpec, successors
from rayplane.runtime.rendezvous import Rendezvous, opening
from rayplane.spec.layout import Layout

LONG_S = 20.0
"""No test waits for it: who is to answer does so at once."""
SHORT_S = 1.0


def own_words(came: list[RankMessage], pids: dict[int, int]) -> None:
    """What came is of one attempt: each rank begins with "started", from the process that the group has for it, and counts from 1."""
    for rank, pid in pids.items():
        mine = [m.message for m in came if m.rank == rank]
        assert (mine[0]["type"], mine[0]["pid"]) == ("started", pid)
        steps = [m["step"] for m in mine if m["type"] == "step"]
        assert steps == list(range(1, len(steps) + 1))


def test_survivors_of_a_killed_rank_keep_their_process(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    os.kill(pids[2], signal.SIGKILL)
    collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    assert group.recall(LONG_S) == {0, 1, 3}
    group.start(launch(seed=2))
    came = collect(group, lambda seen: len(ranks_of(seen, "step")) == 4)
    again = {m.rank: m.message["pid"] for m in came if m.message["type"] == "started"}
    assert {rank for rank in pids if again[rank] == pids[rank]} == {0, 1, 3}
    own_words(came, again)
    assert {m.message["join"]["config"]["seed"] for m in came if m.message["type"] == "started"} == {2}
    group.send({"type": "drain"})
    assert ranks_of(collect(group, lambda seen: len(ranks_of(seen, "exit")) == 4), "done") == {0, 1, 2, 3}


def test_rank_that_failed_parks_too_and_what_it_said_is_still_told(group: LocalGroup) -> None:
    group.start(launch("fail", victim=1))
    pids = group.pids
    collect(group, lambda seen: ranks_of(seen, "failed") == {1} and len(ranks_of(seen, "started")) == 4)
    assert group.recall(LONG_S) == {0, 1, 2, 3}
    group.start(launch())
    assert all_started(group) == pids


def test_last_words_come_before_the_next_start_and_never_after_it(group: LocalGroup) -> None:
    group.start(launch("fail", victim=1))
    came = collect(group, lambda seen: len(ranks_of(seen, "started")) == 4)
    time.sleep(0.2)
    group.recall(LONG_S)
    last = [*came, *group.poll(0.0)]
    assert [m.message["message"] for m in last if m.message["type"] == "failed"] == ["ValueError: the dummy fails"]
    assert not ranks_of(last, "exit") and not ranks_of(last, "parked")
    assert group.poll(0.0) == []
    group.start(launch())
    own_words(collect(group, lambda seen: len(ranks_of(seen, "step")) == 4), group.pids)


def test_stopped_rank_is_killed_after_the_deadline_or_at_once_when_named(group: LocalGroup) -> None:
    for gone in (frozenset[int](), frozenset({3})):
        group.start(launch())
        pids = all_started(group)
        os.kill(pids[3], signal.SIGSTOP)
        began_s = time.monotonic()
        assert group.recall(LONG_S if gone else SHORT_S, gone) == {0, 1, 2}
        assert gone or time.monotonic() - began_s >= SHORT_S
        assert time.monotonic() - began_s < LONG_S / 2
        assert not exists(pids[3])
        assert not ranks_of(group.poll(0.3), "exit"), "its end is our own doing"


def test_rank_that_ignores_the_recall_is_killed(group: LocalGroup) -> None:
    group.start(launch("deaf", victim=1))
    pids = all_started(group)
    assert group.recall(SHORT_S) == {0, 2, 3}
    assert not exists(pids[1])
    group.start(launch())
    again = all_started(group)
    assert {rank for rank in pids if again[rank] == pids[rank]} == {0, 2, 3}


def test_rank_that_dies_while_parked_is_replaced(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    assert len(group.recall(LONG_S)) == 4
    os.kill(pids[0], signal.SIGKILL)
    assert eventually(lambda: not runs(pids[0]), 5.0)
    group.start(launch())
    came = collect(group, lambda seen: len(ranks_of(seen, "step")) == 4)
    own_words(came, group.pids)
    assert not ranks_of(came, "exit")
    assert {rank for rank in pids if group.pids[rank] == pids[rank]} == {1, 2, 3}


def test_second_death_while_ranks_meet_again(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    for victim in (0, 3):
        os.kill(group.pids[victim], signal.SIGKILL)
        collect(group, lambda seen, victim=victim: victim in ranks_of(seen, "exit"))
        assert {1, 2} <= group.recall(LONG_S)
        group.start(launch())
    again = all_started(group)
    assert {rank for rank in pids if again[rank] == pids[rank]} == {1, 2}


def test_fewer_ranks_kill_the_surplus_and_more_spawn_the_missing(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    group.recall(LONG_S)
    group.start(launch(ranks=2))
    assert all_started(group, 2) == {rank: pids[rank] for rank in (0, 1)}
    assert not exists(pids[2]) and not exists(pids[3])
    group.recall(LONG_S)
    group.start(launch())
    again = all_started(group)
    assert {rank for rank in pids if again[rank] == pids[rank]} == {0, 1}


def test_survivor_takes_the_number_and_the_log_of_a_lost_rank(group: LocalGroup, tmp_path: Path) -> None:
    group.start(launch(log_dir=str(tmp_path)))
    pids = all_started(group)
    os.kill(pids[0], signal.SIGKILL)
    collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    assert group.recall(LONG_S) == {1, 2, 3}
    group.start(launch("crash", ranks=2, victim=0, log_dir=str(tmp_path)))
    assert group.pids == {0: pids[2], 1: pids[1]} and not exists(pids[3])
    came = collect(group, lambda seen: ranks_of(seen, "exit") == {0} and ranks_of(seen, "step") == {1})
    assert {m.rank: m.message["join"]["rank"] for m in came if m.message["type"] == "started"} == {0: 0, 1: 1}
    [end] = [m.message for m in came if m.message["type"] == "exit"]
    assert end["log"] == "the dummy crashes" and (tmp_path / "rank-0000.log").read_text().endswith("the dummy crashes\n")
    assert (tmp_path / "rank-0002.log").read_text().count("\n") == 1, "what it said as rank 2"


def test_other_layout_of_the_same_ranks_keeps_them(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    group.recall(LONG_S)
    group.start(replace(launch(), layout=Layout(pp=4)))
    assert all_started(group) == pids


@pytest.mark.parametrize("change", [{"device": "cuda"}, {"name": "other"}, {"cores": 2}])
def test_launch_that_differs_for_the_process_spawns_anew(group: LocalGroup, change: dict[str, object]) -> None:
    group.start(launch(ranks=2))
    pids = all_started(group, 2)
    group.recall(LONG_S)
    group.start(replace(launch(ranks=2), **change))
    assert not set(pids.values()) & set(all_started(group, 2).values())
    assert not any(map(exists, pids.values()))


def test_parked_rank_holds_no_lease_and_takes_that_of_the_next_attempt(group: LocalGroup, tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    first = grant(path)
    group.start(replace(launch(ranks=2), lease=first))
    pids = all_started(group, 2)
    group.recall(LONG_S)
    second = grant(path, timeout_s=0.0)
    group.start(replace(launch(ranks=2), lease=second))
    assert all_started(group, 2) == pids
    with pytest.raises(Exception, match="still hold"):
        grant(path, timeout_s=0.1)
    with pytest.raises(Exception, match="another attempt"), hold(Lease(str(path), second.attempt)):
        pass


def test_parked_rank_of_an_older_driver_never_joins(group: LocalGroup, tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    group.start(replace(launch(ranks=2), lease=grant(path)))
    all_started(group, 2)
    group.recall(LONG_S)
    old = grant(path)
    grant(path)
    group.start(replace(launch(ranks=2), lease=old))
    came = collect(group, lambda seen: len(ranks_of(seen, "exit")) == 2)
    assert not ranks_of(came, "started")
    assert {m.message["kind"] for m in came if m.message["type"] == "failed"} == {"user"}


def test_ranks_still_importing_are_killed_by_a_recall_that_does_not_wait(group: LocalGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_MUTE", "1")
    group.start(launch(ranks=2))
    pids = group.pids
    assert group.recall(0.2) == frozenset()
    assert not any(map(exists, pids.values()))
    monkeypatch.delenv("DUMMY_MUTE")
    group.start(launch(ranks=2))
    all_started(group, 2)


def test_rank_that_is_recalled_before_it_is_ready_parks(group: LocalGroup) -> None:
    group.start(launch(ranks=2))
    pids = group.pids
    assert group.recall(LONG_S) == {0, 1}
    group.start(launch(ranks=2))
    assert all_started(group, 2) == pids


def test_recall_before_a_start_after_a_kill_and_after_a_recall_finds_nobody_new(group: LocalGroup) -> None:
    assert group.recall(LONG_S) == frozenset()
    group.start(launch(ranks=2))
    all_started(group, 2)
    group.kill()
    assert group.recall(LONG_S) == frozenset()


def test_twenty_recalls_leave_no_descriptor_thread_or_process(group: LocalGroup) -> None:
    def state(*pids: int) -> list[int]:
        return [len(list(Path(f"/proc/{pid}/{what}").iterdir())) for pid in pids for what in ("fd", "task")]

    group.start(launch(ranks=2))
    pids = all_started(group, 2)
    before, own = state(*pids.values()), sum(state(os.getpid()))
    for _ in range(20):
        assert group.recall(LONG_S) == {0, 1}
        group.start(launch(ranks=2))
        assert all_started(group, 2) == pids
    assert state(*pids.values()) == before
    assert sum(state(os.getpid())) <= own + 4, "what other tests have left may close meanwhile"


def test_processes_go_to_their_own_rank_first_then_to_any_on_the_same_device() -> None:
    def spec(rank: int, gpu: str = "0") -> RankSpec:
        return RankSpec(rank, "job", "entry", "", "", {"CUDA_VISIBLE_DEVICES": gpu})

    parked = {rank: spec(rank) for rank in (1, 2, 3)}
    assert successors(parked, [spec(0), spec(1)]) == {1: 1, 0: 2}
    assert successors(parked, [spec(rank) for rank in range(5)]) == {1: 1, 2: 2, 3: 3}
    assert successors({2: spec(2, "1"), 3: spec(3, "2")}, [spec(0, "2"), spec(1, "3")]) == {0: 3}
    assert successors({}, [spec(0)]) == {}


def test_when_all_have_parked_the_store_is_asked_for_at_once() -> None:
    parked = Rendezvous(("a", "b"), "cpu", {}, 120.0, 100.0, ready=frozenset({0, 1}))
    assert opening(parked) == ((0, {"type": "host_store", "address": "a"}),)
    assert opening(replace(parked, ready=frozenset({0}))) == ()
