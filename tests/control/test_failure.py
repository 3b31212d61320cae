"""Who is to blame, in one line."""

import pytest

from rayplane.control.event import RankExited, RankFailed, RankLost, TimedOut
from rayplane.control.failure import explain, failure_of


def said(*events):
    return explain([failure_of(event) for event in events])


@pytest.mark.parametrize(
    ("events", "line"),
    [
        ([RankExited(2, 0, 9)], "rank 2 was killed by SIGKILL"),
        ([RankExited(2, 3, 0, "one\nMemoryError: no\n\n")], "rank 2 exited with code 3: MemoryError: no"),
        ([RankExited(2, 0, 0)], "rank 2 exited before its work was done"),
        ([RankExited(2, 0, 64)], "rank 2 was killed by SIGRTMAX"),
        ([RankExited(2, 0, 99)], "rank 2 was killed by signal 99"),
        ([RankFailed(0, "rank", "no"), RankFailed(3, "rank", "no")], "ranks 0, 3: no"),
        ([RankExited(1, 0, 9), RankExited(0, 0, 9)], "ranks 0, 1 were killed by SIGKILL"),
        ([RankLost(r, "its stage actor on gpu-4 is lost") for r in (2, 3)], "ranks 2, 3: its stage actor on gpu-4 is lost"),
        ([TimedOut("step", (1, 2), 600.0, 7)], "ranks 1, 2: no step after step 7 within 600 s"),
    ],
)
def test_a_failure_in_words(events, line):
    assert said(*events) == line


def test_a_lost_connection_is_a_consequence_though_it_came_first():
    lost = RankFailed(0, "rank", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711")
    assert said(lost, RankExited(2, 0, 9)).startswith("rank 2 was killed by SIGKILL (then rank 0: [gloo")


def test_lost_connections_alone_are_named():
    lost = [RankFailed(rank, "rank", "Connection reset by peer") for rank in (1, 0)]
    assert said(*lost) == "ranks 0, 1: Connection reset by peer"


def test_the_users_mistake_comes_first():
    assert said(RankExited(1, 1, 0), RankFailed(0, "user", "disk full")).startswith("rank 0: disk full (then rank 1 exited")


def test_a_users_mistake_is_never_a_consequence():
    assert not failure_of(RankFailed(0, "user", "data server: connection refused")).consequence
