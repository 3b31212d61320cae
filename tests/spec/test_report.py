"""Where a stage's time went, as shares."""

import pytest

from rayplane.spec.report import PHASES, stage_use


def test_every_phase_counts_in_one_share() -> None:
    seconds = {phase: 2.0**i for i, phase in enumerate(PHASES)}
    use = stage_use(1, 2, seconds)
    wall = sum(seconds.values())
    assert (use.replica, use.stage) == (1, 2)
    assert use.compute * wall == pytest.approx(seconds["forward"] + seconds["backward"])
    assert use.wait * wall == pytest.approx(seconds["recv_wait"])
    assert use.comm * wall == pytest.approx(seconds["tp"] + seconds["cp"] + seconds["dp"])
    assert use.optimizer * wall == pytest.approx(seconds["optimizer"])
    assert use.other * wall == pytest.approx(seconds["data"] + seconds["host"])


def test_a_stage_without_time_has_no_shares() -> None:
    use = stage_use(0, 0, {})
    assert (use.compute, use.wait, use.comm, use.optimizer, use.other) == (0, 0, 0, 0, 0)
