"""`rayplane run --runtime local` with the real worker, and what can go wrong in it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from training_job import Run, ends

LOCAL = ("--runtime", "local")


def same(run, losses):
    """Whether every step had the loss of the undisturbed run each time it was done."""
    return all(loss == pytest.approx(losses[step], rel=1e-5) for step, all_of in run.losses().items() for loss in all_of)


def test_sigterm_saves_and_another_run_goes_on_from_there(tmp_path, undisturbed):
    losses, whole = undisturbed
    with Run(tmp_path, *LOCAL) as run:
        run.until("StepDone", 12)
        ranks = list(run.ranks().values())
        values = run.metrics()
        run.driver.send_signal(signal.SIGTERM)
        assert run.end() == 0, run.said()
        first = run.result()
        assert ends(ranks, 0) and len(ranks) == 2
    assert (first["state"], first["checkpoint"]) == ("drained", f"{tmp_path}/runs/job/step-{first['steps']:08d}")
    assert (values["rayplane_job_state state=running"], values["rayplane_job_state state=placing"]) == ([1], [0])
    assert (values["rayplane_restarts_total"], values["rayplane_checkpoints_total"]) == ([0], [2])
    assert values["rayplane_step"][0] >= 12 and values["rayplane_step_predicted_seconds"][0] > 0
    assert values["rayplane_step_measured_seconds rank=1 replica=0 stage=1"][0] > 0
    with Run(tmp_path, *LOCAL, layout="{tp: 2, micro_batch: 4}") as run:
        assert run.end() == 0, run.said()
        final = run.result()
    assert sorted(run.losses()) == sorted(losses)
    assert same(run, losses)
    assert first["holdout_before"] == pytest.approx(whole["holdout_before"], rel=1e-5)
    assert final["holdout_before"] == first["holdout_before"]
    assert final["holdout_after"] == pytest.approx(whole["holdout_after"], rel=1e-5)
    assert final["final_loss"] == pytest.approx(whole["final_loss"], rel=1e-5)


def test_loss_that_is_not_finite_at_the_same_step_again_ends_the_job(tmp_path):
    with Run(tmp_path, *LOCAL, lr=1e20, eps=1e-310) as run:  # so small that arithmetic would take it for zero: it is more all the same
        assert run.end() == 1
    assert run.result()["state"] == "failed"
    message = run.result()["message"]
    assert "is not finite at step" in message and "rank" in message
    assert "it came a second time after step" in message
    assert sum(e["event"] == "Placed" for e in run.events()) == 2


@pytest.fixture
def small_disk(tmp_path):
    """A file system at the job's folder that has room for two checkpoints, not for three."""
    folder = tmp_path / "runs"
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_ends_the_job_and_the_older_checkpoint_is_good(tmp_path, small_disk: Path, undisturbed):
    with Run(tmp_path, *LOCAL) as run:
        assert run.end() == 1
    final = run.result()
    assert final["state"] == "failed" and "No space left on device" in final["message"]
    assert "is still good: free space" in final["message"]
    assert sum(e["event"] == "Placed" for e in run.events()) == 1
    good = Path(final["checkpoint"])
    assert (good / "manifest.json").is_file()
    assert not list(good.parent.glob(".step-*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    with Run(tmp_path, *LOCAL) as run:
        assert run.end() == 0, run.said()
    assert same(run, undisturbed[0])
