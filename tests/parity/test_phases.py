"""The clock is always in exactly one phase, so a step's phases sum to its wall time."""

import time

import pytest

from rayplane.comm.clock import PhaseClock
from rayplane.spec.layout import Layout
from rayplane.spec.report import PHASES
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, tiny


def test_inner_phase_takes_its_time_out_of_the_outer_one():
    now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    clock = PhaseClock(stamp=lambda: next(now))
    with clock.phase("forward"), clock.phase("tp"):
        pass
    assert clock.take() == {"host": 1.0 + 5.0, "forward": 2.0 + 4.0, "tp": 3.0}


def test_time_between_take_and_the_next_step_counts():
    now = iter([0.0, 1.0, 4.0])
    clock = PhaseClock(stamp=lambda: next(now))
    assert clock.take() == {"host": 1.0}
    assert clock.take() == {"host": 3.0}


def test_phases_of_steps_sum_to_the_time_outside(tmp_path):
    job = section(tmp_path)

    def body(mesh):
        rank = make_rank(tiny(), job, mesh)
        mesh.clock.start()
        begin = time.perf_counter()
        reports = [rank.step(drain=False)[0] for _ in range(3)]
        return time.perf_counter() - begin, reports

    for wall_s, reports in run_ranks(cut(tiny(), Layout(dp=2, pp=2, micro_batch=2)), body):
        assert sum(r.wall_s for r in reports) == pytest.approx(wall_s, rel=0.02)
        for report in reports:
            assert set(report.phases) <= set(PHASES)
            assert sum(report.phases.values()) == pytest.approx(report.wall_s)
            assert {"forward", "backward", "recv_wait", "optimizer", "data", "dp"} <= set(report.phases)
