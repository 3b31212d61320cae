import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from dummies import all_started, collect, launch, ranks_of

from rayplane.errors import RayplaneError
from rayplane.rank.lease import Lease, hold
from rayplane.runtime.lease import grant
from rayplane.runtime.local import LocalGroup
from rayplane.runtime.patience import GaveUp

RANK = """
import sys, time
from rayplane.rank.lease import Lease, hold
with hold(Lease(*sys.argv[1:])):
    print("holds", flush=True)
    time.sleep(600)
"""


def rank(lease: Lease) -> subprocess.Popen[str]:
    """A process that holds a lease."""
    process = subprocess.Popen([sys.executable, "-c", RANK, lease.path, lease.attempt], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "holds\n"
    return process


def test_ranks_of_one_attempt_hold_it_together_and_the_next_waits_for_all(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    first = grant(path)
    with rank(first) as one, rank(first) as other:
        one.kill()
        with pytest.raises(RayplaneError, match=r"ranks of an earlier run still hold .*ranks after 0.1 s: end them"):
            grant(path, timeout_s=0.1)
        other.kill()
        second = grant(path, timeout_s=10.0)
    with hold(second):
        assert second != first


def test_rank_that_comes_late_finds_another_attempt_there(tmp_path: Path) -> None:
    late = grant(tmp_path / "ranks")
    grant(tmp_path / "ranks")
    with pytest.raises(RayplaneError, match="another attempt of the job has taken over"), hold(late):
        pass


def test_wait_for_earlier_ranks_ends_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "ranks"
    with rank(grant(path)) as process:
        told_s = time.monotonic() + 0.1
        with pytest.raises(GaveUp):
            grant(path, lambda: time.monotonic() > told_s)
        assert time.monotonic() - told_s < 0.5
        process.kill()


def test_folder_that_a_node_does_not_see_is_named(tmp_path: Path) -> None:
    blind = pytest.raises(RayplaneError, match=r"is not there: train.checkpoint.dir must be a folder that every node sees")
    with blind, hold(Lease(str(tmp_path / "none"), "x")):
        pass


def test_rank_processes_hold_their_lease_until_they_are_gone(tmp_path: Path, group: LocalGroup) -> None:
    path = tmp_path / "ranks"
    group.start(replace(launch(ranks=2), lease=grant(path)))
    all_started(group, 2)
    with pytest.raises(RayplaneError, match="still hold"):
        grant(path, timeout_s=0.1)
    group.kill()
    grant(path, timeout_s=0.1)


def test_rank_without_a_valid_lease_ends_with_the_reason(tmp_path: Path, group: LocalGroup) -> None:
    lease = grant(tmp_path / "ranks")
    grant(tmp_path / "ranks")
    group.start(replace(launch(ranks=1, log_dir=str(tmp_path / "logs")), lease=lease))
    came = collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    assert ranks_of(came, "started") == set()
    (failed,) = [m.message for m in came if m.message["type"] == "failed"]
    assert failed["kind"] == "user" and "another attempt of the job has taken over" in failed["message"]
