"""Observations are means over a window, and hold nothing that is no number."""

import math

from rayplane.plan.measured.observe import Increases, of_increases, of_reports
from rayplane.spec.report import StepReport


def report(rank, step, forward, sent=100):
    phases = {"forward": forward, "backward": 2.0, "host": 0.5}
    return StepReport(rank, 0, rank, step, 1.0, 1.0, 1e-3, 64, sum(phases.values()), phases, {"tp": sent})


def test_means_are_over_a_window_and_warming_up_does_not_count():
    seen = of_reports([report(r, s, forward=100.0 if s == 1 else float(s)) for r in (0, 1) for s in (3, 1, 2, 4)])
    assert seen.steps == 3
    assert [r.phases["forward"] for r in seen.ranks] == [3.0, 3.0]
    assert seen.ranks[0].comm_bytes == {"tp": 100}
    assert (seen.step_s, seen.stages, seen.replicas) == (5.5, 2, 1)
    assert of_reports([report(0, s, float(s)) for s in range(1, 11)], window=2).ranks[0].phases["forward"] == 9.5


def test_counters_become_means_per_step():
    place = (1, 0, 3)
    seen = of_increases(Increases(20, {(place, "forward"): 10.0, (place, "tp"): 5.0}, {(place, "tp"): 4000.0}))
    (rank,) = seen.ranks
    assert (rank.replica, rank.stage, rank.rank) == place
    assert rank.phases == {"forward": 0.5, "tp": 0.25}
    assert (rank.comm_bytes, rank.step_s) == ({"tp": 200.0}, 0.75)


def test_what_is_no_number_is_left_out_and_said():
    seconds = {((0, 0, 0), "forward"): math.nan, ((0, 0, 0), "backward"): 4.0, ((0, 0, 1), "tp"): -1.0, ((0, 0, 1), "nap"): 1.0}
    seen = of_increases(Increases(2, seconds))
    assert seen.ranks[0].phases == {"backward": 2.0}
    assert seen.ignored == ("rank 0: forward is nan", "rank 1: tp is -1", "phase nap of 1 ranks is not known")


def test_a_window_without_steps_is_no_observation():
    for steps in (0.0, math.nan):
        seen = of_increases(Increases(steps, {((0, 0, 0), "forward"): 1.0}))
        assert (seen.ranks, seen.step_s) == ((), 0.0)
        assert seen.ignored == ("no step was finished in the window",)
    assert of_reports([]).ranks == ()
