"""The loop over real rank processes of a LocalGroup, with a toy instead of a trainer."""

import os
from pathlib import Path

import pytest

from rayplane.control.loop import Controller
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.runtime.group import Launch
from rayplane.runtime.local import LocalGroup
from rayplane.spec.job import LimitsSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

HERE = Path(__file__).parent


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Runs the toy on two ranks; gives the result and the pids of the last attempt."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent.parent)]))

    def run(stop=None, observers=(), timeout_s=30.0, **does):
        config = {"steps": 7, "dies_at": 0, "stands_still_at": 0, "waits_at": 0, "saves_at": 4, "dir": str(tmp_path), **does}
        launch = Launch("toy", Layout(pp=2), Placement((Slot(0, 0, 0, (0, 1), "here", "here"),)), "toy_trainer", config)
        group = LocalGroup()
        task = Task(tmp_path, config["steps"], LimitsSection(restarts=1, step_timeout_s=timeout_s), launch)
        result = Controller(task, group, observers).run(stop or Stop())
        assert not [pid for pid in group.pids.values() if Path(f"/proc/{pid}").exists()]
        return result

    return run


class StopAt:
    def __init__(self, step, stop):
        self.step, self.stop = step, stop

    def on_event(self, state, event):
        pass

    def on_step(self, reports):
        if reports[0].step == self.step:
            self.stop.request()


def test_a_killed_rank_costs_a_restart_from_the_newest_checkpoint(train):
    result = train(dies_at=5)
    assert (result.state, result.step, result.restarts) == ("finished", 7, 1)
    assert result.checkpoint.endswith("step-00000004")
    assert sorted(result.losses) == [1, 2, 3, 4, 5, 6, 7]


def test_a_rank_that_stands_still_is_named(train):
    result = train(stands_still_at=3, saves_at=0, timeout_s=0.5)
    assert (result.state, result.exit_code, result.restarts) == ("failed", 1, 1)
    assert result.message.startswith("rank 1: no step after step 2 within 0.5 s")


def test_a_stop_drains_all_ranks(train):
    stop = Stop()
    result = train(stop, [StopAt(3, stop)], waits_at=4, steps=1000)
    assert (result.state, result.exit_code) == ("drained", 0)
    assert result.step < 1000
