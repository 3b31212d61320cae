"""Orders to a real job: paused, moved and resumed it comes to the losses of a job that nobody disturbed."""

import json
import os
import signal

import pytest
from training_job import Run, ends

LOCAL = ("--runtime", "local")
STEPS = 120


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """By step, of the job on one rank."""
    with Run(tmp_path_factory.mktemp("alone"), *LOCAL, steps=STEPS, every=50, layout="{micro_batch: 2}") as run:
        assert run.end() == 0, run.said()
        return {step: loss for step, (loss,) in run.losses().items()}


def answer(cli, *words):
    """What a command says of itself with --json."""
    result = cli(*words, "--json")
    return result.exit_code, json.loads(result.stdout)


def test_a_job_that_is_paused_moved_and_resumed_has_the_losses_of_one_that_was_not(tmp_path, cli, losses):
    with Run(tmp_path, *LOCAL, steps=STEPS, every=50) as run:
        run.until("StepDone", 3)
        ranks = list(run.ranks().values())
        code, paused = answer(cli, "pause", "job.yaml")
        assert (code, paused["state"]) == (0, "paused") and "it is paused after step" in paused["message"]
        assert len(ranks) == 2 and ends(ranks, 0) and not run.ranks()
        assert answer(cli, "status", "runs/job")[1]["state"] == "paused"
        refused = cli("layout", "set", "runs/job", "tp=8")
        assert refused.exit_code == 1 and "the model has 4 heads; nearest possible: dp 1, pp 1, tp 2" in refused.stderr
        assert "a replica of the job's layout takes 2" in cli("scale", "runs/job", "--devices", 1).stderr
        assert "it is paused after step" in cli("pause", "runs/job").stdout
        code, moved = answer(cli, "layout", "set", "runs/job", "tp=2", "micro_batch=4")
        assert code == 0 and "will go on under tp2 mb4" in moved["message"]
        assert answer(cli, "resume", "runs/job")[0] == 0
        assert "not paused" in cli("resume", "runs/job").stderr
        assert run.end() == 0, run.said()
    done = run.losses()
    assert sorted(done) == list(range(1, STEPS + 1))
    assert all(loss == pytest.approx(losses[step], rel=1e-5) for step, (loss,) in done.items())
    final = run.result()
    assert (final["state"], final["restarts"], final["layout"]["tp"], final["layout"]["pp"]) == ("finished", 0, 2, 1)
    assert answer(cli, "layout", "show", "runs/job")[1]["layout"]["micro_batch"] == 4
    (replayed,) = answer(cli, "replay", "runs/job")[1]
    assert (replayed["differences"], replayed["ended"], replayed["events"][-1]["step"]) == (0, True, STEPS)
    assert "the log and the machine agree" in cli("replay", "runs/job/events.jsonl").stdout
    assert "no driver runs this job, it is finished" in cli("stop", "runs/job").stderr


def test_a_layout_that_is_set_while_the_job_trains_takes_over_from_the_step_that_is_done(tmp_path, cli, losses):
    with Run(tmp_path, *LOCAL, steps=STEPS, every=50) as run:
        run.until("StepDone", 3)
        code, moved = answer(cli, "layout", "set", "runs/job", "tp=2", "micro_batch=4")
        assert code == 0 and "it trains from step" in moved["message"], moved
        code, stopped = answer(cli, "stop", "runs/job")
        assert (code, stopped["state"]) in ((0, "drained"), (0, "finished"))
        assert run.end() == 0, run.said()
    assert all(loss == pytest.approx(losses[step], rel=1e-5) for step, (loss,) in run.losses().items())
    assert sum(event["event"] == "Placed" for event in run.events()) == 2


def test_stop_now_does_not_wait_for_a_save_and_the_driver_is_gone_when_it_returns(tmp_path, cli):
    with Run(tmp_path, *LOCAL, steps=100_000, every=100_000) as run:
        run.until("StepDone", 3)
        assert answer(cli, "stop", "runs/job", "--now")[1]["state"] == "failed"
        assert run.end(30) == 130
    assert not (tmp_path / "runs/job/controller.json").exists()


def test_a_driver_that_was_killed_is_counted_by_the_next_and_too_many_are_refused(tmp_path, cli):
    with Run(tmp_path, *LOCAL, steps=100_000, every=100_000) as run:
        job = (tmp_path / "job.yaml").read_text().replace("{restarts: 2,", "{restarts: {controller: 0},")
        run.until("StepDone", 2)
        os.kill(run.driver.pid, signal.SIGKILL)
        run.driver.wait(30)
    assert "no driver runs this job, it is lost" in cli("pause", "runs/job").stderr
    (tmp_path / "job.yaml").write_text(job)
    refused = cli("run", "job.yaml", *LOCAL)
    assert refused.exit_code == 1
    assert "runs in a row whose driver died without an end: 1; limits.restarts.controller (0) is spent" in refused.stderr
