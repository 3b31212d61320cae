import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from dummies import all_started, collect, eventually, exists, launch, ranks_of, runs

from rayplane.runtime.group import RankMessage
from rayplane.runtime.local import LocalGroup
from rayplane.runtime.process import STOPPED_S

OWNER = """
import sys, time
sys.path[:0] = {path!r}.split(":")
from dummies import all_started, launch
from rayplane.runtime.local import LocalGroup
group = LocalGroup()
group.start(launch(log_dir={log_dir!r}))
print(*(group.pids.values() if {mute} else all_started(group).values()), flush=True)
time.sleep(600)
"""


def test_four_ranks_meet_and_report_until_drained(group: LocalGroup) -> None:
    group.start(launch())
    came = collect(group, lambda seen: len(ranks_of(seen, "step")) == 4)
    group.send({"type": "drain"})
    came += collect(group, lambda seen: len(ranks_of(seen, "exit")) == 4)
    joins = [m.message["join"] for m in came if m.message["type"] == "started"]
    assert sorted(j["rank"] for j in joins) == [0, 1, 2, 3]
    assert {(j["host"], j["port"], j["device"], j["config"]["does"]) for j in joins} == {("127.0.0.1", 29500, "cpu", "step")}
    assert ranks_of(came, "done") == {0, 1, 2, 3}
    assert {m.message["code"] for m in came if m.message["type"] == "exit"} == {0}
    for rank in range(4):
        kinds = [m.message["type"] for m in came if m.rank == rank]
        assert kinds[0] == "started" and kinds[-2:] == ["done", "exit"]


def test_killed_rank_is_reported_within_half_a_second(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    killed_s = time.monotonic()
    os.kill(pids[2], signal.SIGKILL)
    came = collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    assert time.monotonic() - killed_s < 0.5
    assert [(m.rank, m.message) for m in came if m.message["type"] == "exit"] == [
        (2, {"type": "exit", "code": -9, "signal": 9, "log": ""})
    ]


def test_crash_comes_with_the_last_lines_of_its_own_log(group: LocalGroup, tmp_path: Path) -> None:
    (tmp_path / "rank-0001.log").write_text("a line of the attempt before\n")
    group.start(launch("crash", victim=1, log_dir=str(tmp_path)))
    came = collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    (end,) = [m.message for m in came if m.message["type"] == "exit"]
    assert (end["code"], end["signal"]) == (1, 0)
    assert end["log"].splitlines()[0].startswith("rank process") and end["log"].endswith("the dummy crashes")


def test_garbage_is_a_failure_of_the_rank_and_kills_it(group: LocalGroup) -> None:
    group.start(launch("garbage", victim=3))
    came = collect(group, lambda seen: 3 in ranks_of(seen, "exit"))
    (failed,) = [m for m in came if m.message["type"] == "failed"]
    assert (failed.rank, failed.message["kind"]) == (3, "rank")
    assert "this is no message" in failed.message["message"]


def test_huge_messages_arrive_whole(group: LocalGroup) -> None:
    group.start(launch("huge", ranks=2))
    came = collect(group, lambda seen: len(ranks_of(seen, "huge")) == 2)
    assert {len(m.message["text"]) for m in came if m.message["type"] == "huge"} == {4_000_000}


def test_messages_of_a_rank_keep_their_order(group: LocalGroup) -> None:
    group.start(launch("chatty", ranks=2))
    came = collect(group, lambda seen: sum(m.message["type"] == "note" for m in seen) == 4000)
    for rank in range(2):
        assert [m.message["i"] for m in came if m.rank == rank and m.message["type"] == "note"] == list(range(2000))


def test_kill_leaves_no_process_and_no_stale_message(group: LocalGroup) -> None:
    group.start(launch())
    pids = all_started(group)
    group.kill()
    assert not [pid for pid in pids.values() if exists(pid)]
    assert group.poll(0) == []
    group.kill()


def test_group_starts_again_after_a_kill(group: LocalGroup) -> None:
    group.start(launch(ranks=2))
    first = all_started(group, 2)
    group.kill()
    group.start(launch(ranks=2))
    assert not set(first.values()) & set(all_started(group, 2).values())


def test_stopped_rank_is_killed_with_the_gang(group: LocalGroup) -> None:
    group.start(launch(ranks=2))
    pids = all_started(group, 2)
    os.kill(pids[1], signal.SIGSTOP)
    group.kill()
    assert not exists(pids[1])


def test_rank_that_stays_stopped_is_named_once_and_a_short_stop_is_forgiven(group: LocalGroup) -> None:
    group.start(launch(ranks=2))
    pids = all_started(group, 2)
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(STOPPED_S / 2)
    os.kill(pids[0], signal.SIGCONT)
    os.kill(pids[1], signal.SIGSTOP)
    came = collect(group, lambda seen: bool(ranks_of(seen, "failed")))
    came += [m for _ in range(10) for m in group.poll(0.1)]
    assert [(m.rank, m.message["message"]) for m in came if m.message["type"] == "failed"] == [(1, "was stopped by SIGSTOP")]


@pytest.mark.parametrize("mute", [False, True], ids=["at work", "before they open their channel"])
def test_ranks_die_with_their_owner(mute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mute:
        monkeypatch.setenv("DUMMY_MUTE", "1")
    code = OWNER.format(path=os.environ["PYTHONPATH"], log_dir=str(tmp_path), mute=mute)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert eventually(lambda: sum("is up" in log.read_text() for log in tmp_path.iterdir()) == 4, 10.0)
        assert len(pids) == 4 and all(map(runs, pids))
        owner.kill()
    assert eventually(lambda: not any(map(runs, pids)), 1.0)


def test_twenty_starts_leak_no_descriptor_and_no_zombie(group: LocalGroup) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(20):
        group.start(launch(ranks=2))
        pids = group.pids
        group.kill()
        assert not any(map(exists, pids.values()))
    assert descriptors() == before


def test_ranks_that_never_get_ready_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMMY_MUTE", "1")
    group = LocalGroup(start_timeout_s=0.3)
    try:
        group.start(launch(ranks=2))
        (late,) = collect(group, lambda seen: bool(seen))
        assert late.message["type"] == "failed" and late.message["kind"] == "rank"
        assert late.message["message"] == "ranks 0, 1 did not get ready within 0.3 s of the start"
        assert group.poll(0.2) == []
    finally:
        group.close()


def test_step_messages_are_observed_on_their_way() -> None:
    observed: list[dict[str, object]] = []
    group = LocalGroup(on_step=observed.append)
    try:
        group.start(launch(ranks=1))
        came = collect(group, lambda seen: sum(m.message["type"] == "step" for m in seen) >= 3)
        steps = [m.message for m in came if m.message["type"] == "step"]
        assert observed[: len(steps)] == steps
    finally:
        group.close()


def test_entry_that_does_not_exist_ends_every_rank(group: LocalGroup, tmp_path: Path) -> None:
    group.start(replace(launch(ranks=2, log_dir=str(tmp_path)), entry="no_such_entry"))
    came: list[RankMessage] = collect(group, lambda seen: len(ranks_of(seen, "exit")) == 2)
    assert all("no_such_entry" in m.message["log"] for m in came)


def test_ranks_take_the_gpus_that_the_owner_sees_in_turn(group: LocalGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    group.start(replace(launch(ranks=2), device="cuda"))
    came = collect(group, lambda seen: len(ranks_of(seen, "started")) == 2)
    assert {m.rank: m.message["gpu"] for m in came if m.message["type"] == "started"} == {0: "5", 1: "7"}
