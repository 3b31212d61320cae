"""`rayplane run` with copies in memory: what outlives a driver that is killed, and what a job leaves when it ends."""

import os
import signal
from pathlib import Path

import pytest
from dummies import eventually
from training_job import Run, ends

LOCAL = ("--runtime", "local")


@pytest.fixture
def ram(tmp_path):
    path = tmp_path / "ram"
    path.mkdir()
    return path


def options(ram):
    return {"every": f"100, memory_every: 5, memory_dir: {ram}", "steps": 150}


def newest(ram: Path) -> int:
    """The step of the newest copy; 0 where there is none."""
    return max((int(path.parent.name.removeprefix("step-")) for path in ram.glob("rayplane-*/step-*/manifest.json")), default=0)


def test_a_run_after_a_driver_that_was_killed_goes_on_from_the_copies(tmp_path, ram):
    with Run(tmp_path, *LOCAL, **options(ram)) as run:
        run.until("StepDone", 12)
        assert eventually(lambda: newest(ram) >= 10, 30)
        ranks = list(run.ranks().values())
        os.kill(run.driver.pid, signal.SIGKILL)
        assert ends(ranks, 20)
    copied = newest(ram)
    with Run(tmp_path, *LOCAL, **options(ram), layout="{tp: 2, micro_batch: 4}") as run:
        assert run.end() == 0, run.said()
    began = [event["step"] for event in run.events() if event["event"] == "Started"]
    assert began == [0, copied] and copied >= 10 and copied % 5 == 0
    assert f"training from step {copied}" in run.said()
    for step, losses in run.losses().items():
        assert max(losses) == pytest.approx(min(losses), rel=1e-5), f"step {step} was done twice, and differed"
    assert not list(ram.iterdir()), "the state is on disk"


def test_a_job_that_fails_leaves_nothing_in_memory(tmp_path, ram):
    with Run(tmp_path, *LOCAL, **options(ram), lr=1e20, eps=1e-310) as run:
        assert run.end() == 1
    assert run.result()["state"] == "failed" and "is not finite" in run.result()["message"]
    assert (run.runs / "job" / "memory-id").is_file()
    assert not list(ram.iterdir())


def test_copies_of_a_job_that_nobody_drives_go_when_another_starts(tmp_path, ram):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Run(tmp_path / "one", *LOCAL, **options(ram)) as run:
        assert eventually(lambda: newest(ram) >= 5, 90), run.said()
        os.kill(run.driver.pid, signal.SIGKILL)
        assert ends(list(run.ranks().values()), 20)
    (left,) = ram.iterdir()
    with Run(tmp_path / "two", *LOCAL, **options(ram)) as run:
        run.until("Started")
        assert not left.exists()
