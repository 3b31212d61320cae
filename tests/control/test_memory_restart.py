"""Real ranks that die: the job goes on from the copy in memory, N steps behind at most, with the losses of the undisturbed run."""

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from training_job import DEFAULTS, JOB

from rayplane.control.lock import lock_path, locked
from rayplane.control.loop import Controller
from rayplane.control.stop import Stop
from rayplane.control.task import Task
from rayplane.runtime.group import Launch
from rayplane.runtime.local import LocalGroup
from rayplane.spec.layout import Layout
from rayplane.spec.load import load_job
from rayplane.spec.plan import Placement, Slot

TESTS = Path(__file__).parent.parent
FOUR = Layout(dp=2, pp=2, boundaries=(1, 1), micro_batch=2)


class Watch:
    """Which step each attempt began with."""

    def __init__(self):
        self.began = []

    def on_event(self, state, event):
        if type(event).__name__ == "Started":
            self.began.append(event.step)

    def on_step(self, reports):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the job with its ranks on hosts, some of which die after step 17; gives the result and where its attempts began."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS / "runtime"), str(TESTS.parent)]))
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.random.default_rng(0).integers(0, 61, 4000).astype(np.uint16))
    (tmp_path / "ram").mkdir()

    def go(layout, hosts, ranks=(), with_memory=False, restarts=2):
        values = {**DEFAULTS, "every": f"100, memory_every: 5, memory_dir: {tmp_path}/ram"}
        text = JOB.format(name="mortal", directory=tmp_path / "job", **values)
        Path("job.yaml").write_text(text.replace("restarts: 2", f"restarts: {restarts}"))
        job = load_job(Path("job.yaml"))
        config = {
            "job": job.model_dump(mode="json"),
            "layout": asdict(layout),
            "memory": {"lock": str(lock_path(tmp_path / "job"))},
            "hosts": [f"{tmp_path}/ram/rayplane-{host}" for host in hosts],
            "dies": {"ranks": ranks, "after": 17, "copied": "step-00000015", "with_memory": with_memory},
        }
        placement = Placement((Slot(0, 0, 0, tuple(range(layout.size)), "here", "here"),))
        launch = Launch("mortal", layout, placement, "mortal_rank", config, log_dir=str(tmp_path / "logs"), directory=str(tmp_path))
        watch = Watch()
        with locked(tmp_path / "job"):
            result = Controller(Task(tmp_path / "job", 40, job.limits, launch), LocalGroup(), [watch]).run(Stop())
        return result, watch.began

    return go


def same(result, undisturbed):
    return all(loss == pytest.approx(undisturbed[0][step], rel=1e-5) for step, loss in result.losses.items())


@pytest.mark.parametrize(
    ("hosts", "ranks", "with_memory"),
    [("aaaa", [1], False), ("aabb", [2, 3], True)],
    ids=["one rank of a host", "a host with its memory"],
)
def test_a_job_whose_ranks_die_after_step_17_goes_on_from_15(hosts, ranks, with_memory, run, undisturbed, tmp_path):
    result, began = run(FOUR, hosts, ranks, with_memory)
    assert (result.state, result.step, result.restarts, began) == ("finished", 40, 1, [0, 15]), result.message
    assert sorted(result.losses) == list(range(1, 41)) and same(result, undisturbed)
    assert not list((tmp_path / "ram").iterdir()), "the state is on disk"


def test_another_run_under_another_layout_goes_on_from_the_copies_of_one_that_failed(run, undisturbed):
    failed, began = run(FOUR, "abab", [1], restarts=0)
    assert (failed.state, began) == ("failed", [0])
    result, began = run(Layout(tp=2, boundaries=(2,), micro_batch=4), "ab")
    assert (result.state, result.step, began) == ("finished", 40, [15]), result.message
    assert sorted(result.losses) == list(range(16, 41)) and same(result, undisturbed)
