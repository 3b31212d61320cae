"""Slow ranks: found among peers of the same stage, by compute, over a window."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.control import slow_watch as slow_watch_module
from rayplane.control.event import RankSlow, Started
from rayplane.control.slow_watch import PATIENCE_S, SlowWatch
from rayplane.control.state import Arrangement, Progress, Running, Starting
from rayplane.control.straggler import WINDOW_STEPS, _ratios, slow_ranks
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement
from rayplane.spec.report import StepReport


def step(layout, compute_s, waits_s=None):
    """Reports of all ranks of a step, by what each computes, and waits."""
    waits = waits_s or [0.0] * layout.size
    out = []
    for rank in range(layout.size):
        coord = layout.coord(rank)
        phases = {"forward": compute_s[rank] / 3, "backward": 2 * compute_s[rank] / 3, "recv_wait": waits[rank], "tp": waits[rank]}
        out.append(StepReport(rank, coord.dp, coord.pp, 1, 1.0, 1.0, 0.1, 8, 1.0, phases))
    return out


DP4, PP2 = Layout(dp=4), Layout(dp=2, pp=2)
CASES = {
    "one of four": (DP4, [1, 1, 3, 1], {2: 3.0}),
    "all alike": (DP4, [1, 1.2, 1, 1.1], {}),
    "stages are no peers": (PP2, [1, 3, 1, 3], {}),
    "within a stage": (PP2, [1, 3, 1, 9], {3: 3.0}),
    "nobody to compare with": (Layout(pp=2), [1, 9], {}),
    "tp ranks are peers": (Layout(tp=2), [1, 2], {1: 2.0}),
    "cp ranks are peers": (Layout(cp=2), [2, 1], {0: 2.0}),
    "two of four": (DP4, [1, 1, 4, 4], {2: 4.0, 3: 4.0}),
    "not a number": (DP4, [1, 1, float("nan"), 1], {}),
}


@pytest.mark.parametrize(("layout", "compute_s", "slow"), CASES.values(), ids=CASES)
def test_slow_ranks(layout, compute_s, slow):
    found = slow_ranks([step(layout, compute_s)] * WINDOW_STEPS, layout, 8, 1.5)
    assert found == {rank: pytest.approx(factor) for rank, factor in slow.items()}


def test_waiting_is_not_being_slow():
    assert not slow_ranks([step(DP4, [1] * 4, [0, 0, 9, 0])] * WINDOW_STEPS, DP4, 8, 1.5)


def test_a_replica_with_more_samples_may_take_longer():
    layout = Layout(dp=2)
    assert not slow_ranks([step(layout, [2, 1])] * WINDOW_STEPS, layout, 3, 1.5)


def test_some_bad_steps_are_not_the_rule_and_a_short_window_tells_nothing():
    bad, good = step(DP4, [1, 1, 9, 1]), step(DP4, [1, 1, 1, 1])
    assert not slow_ranks([bad] * 4 + [good] * 6, DP4, 8, 1.5)
    assert not slow_ranks([bad] * (WINDOW_STEPS - 1), DP4, 8, 1.5)
    assert set(slow_ranks([good] * 50 + [bad] * WINDOW_STEPS, DP4, 8, 1.5)) == {2}


@given(st.floats(1.05, 20.0), st.floats(1.02, 10.0), st.lists(st.floats(1.0, 1.005), min_size=8, max_size=8))
def test_a_rank_is_slow_from_the_factor_on(slowness, factor, noise):
    layout = Layout(dp=8)
    compute_s = [n * (slowness if rank == 5 else 1.0) for rank, n in enumerate(noise)]
    found = slow_ranks([step(layout, compute_s)] * WINDOW_STEPS, layout, 8, factor)
    if abs(slowness / factor - 1) > 0.01:
        assert set(found) == ({5} if slowness > factor else set())


class Clock:
    now_s = 0.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(slow_watch_module, "time", clock)
    return clock


def feed(watch, clock, compute_s, seconds, state):
    """Windows of steps, one a second."""
    events = []
    for _ in range(seconds):
        for _ in range(WINDOW_STEPS):
            watch.on_step(step(DP4, compute_s))
        events += watch.take(state)
        clock.now_s += 1.0
    return events


def test_a_slow_rank_is_named_once_in_an_attempt_and_replaced_where_there_is_room(clock):
    asked, running = [], Running(Progress(arrangement=Arrangement(DP4, Placement(()))))
    watch = SlowWatch(8, 1.5, lambda arrangement, rank: asked.append((arrangement.layout, rank)) or True)
    watch.on_event(running, Started(0))
    events = feed(watch, clock, [1, 1, 3, 1], 20, running)
    assert events == [RankSlow(2, pytest.approx(3.0), replace=True)] and asked == [(DP4, 2)]
    watch.on_event(running, Started(0))
    assert len(feed(watch, clock, [1, 1, 3, 1], 20, running)) == 1


def test_a_rank_that_is_slow_for_a_moment_now_and_then_is_not_named(clock):
    watch, running = SlowWatch(8, 1.5, lambda *_: False), Running(Progress(arrangement=Arrangement(DP4, Placement(()))))
    for _ in range(5):
        assert not feed(watch, clock, [1, 1, 3, 1], int(PATIENCE_S), running)
        assert not feed(watch, clock, [1, 1, 1, 1], 1, running)


def test_only_a_job_that_runs_is_watched(clock):
    watch = SlowWatch(8, 1.5, lambda *_: True)
    assert not feed(watch, clock, [1, 1, 3, 1], 20, Starting(Progress(arrangement=Arrangement(DP4, Placement(())))))


@given(st.dictionaries(st.integers(0, 40), st.floats(0.0, 10.0), max_size=12))
def test_each_rank_is_held_against_the_median_of_the_others(seconds: dict[int, float]) -> None:
    others = {rank: [s for other, s in seconds.items() if other != rank] for rank in seconds}
    expected = {rank: seconds[rank] / median(of) for rank, of in others.items() if of and median(of) > 0}
    assert _ratios(seconds) == expected
