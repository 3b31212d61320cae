"""`rayplane run` against a scripted group."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_group import FakeGroup, done, exited, failed, save, saved, started, step

from rayplane.control.lock import locked
from rayplane.errors import PlacementError

RUN = Path("runs/small")
ROOT = Path(__file__).parents[2]


def whole_run():
    return FakeGroup([started(holdout=5.5), *(step(n) for n in range(1, 4)), step(4), saved(RUN.absolute(), 4), done(4, holdout=2.25)])


def last_object(result):
    return json.loads(result.stdout.splitlines()[-1])


def test_a_run_ends_with_the_table_and_the_losses(cli, job, fleet):
    fleet(whole_run())
    result = cli("run", job())
    assert result.exit_code == 0, result.stderr
    assert "stage utilisation" in result.stdout
    assert "held-out loss  5.5000 before, 2.2500 after" in result.stdout
    assert "step 4/4  loss 0.2500" in result.stdout
    assert str(RUN.absolute() / "step-00000004") in result.stdout


def test_json_is_the_only_line_on_stdout(cli, job, fleet):
    fleet(whole_run())
    result = cli("run", job(), "--json")
    assert len(result.stdout.splitlines()) == 1
    final = last_object(result)
    assert {"layout", "steps", "final_loss", "holdout_before", "holdout_after", "tokens_per_s", "stages", "checkpoint"} <= set(final)
    assert set(final["stages"][0]) >= {"replica", "stage", "compute", "wait", "comm", "optimizer"}
    assert (final["steps"], final["final_loss"], final["layout"]["dp"], final["state"]) == (4, 0.25, 2, "finished")
    assert "step 4/4" in result.stderr


def test_ranks_are_told_all_they_need(cli, job, fleet, tmp_path):
    group = fleet(whole_run())
    cli("run", job())
    launch = group.launches[0]
    assert (launch.entry, launch.device, launch.name) == ("rayplane.train.worker", "cpu", "small")
    assert launch.config["job"]["train"]["checkpoint"]["dir"] == str(tmp_path / RUN)
    assert launch.directory == str(tmp_path)
    assert launch.config["layout"]["boundaries"]
    assert (launch.config["resume"], launch.config["attempt"]) == ("", 1)
    json.dumps(launch.config)


def test_a_finished_job_says_so_and_runs_nothing(cli, job, fleet):
    fleet(whole_run())
    first = last_object(cli("run", job(), "--json"))
    group = fleet(FakeGroup())
    again = cli("run", job(), "--json")
    assert (again.exit_code, group.launches) == (0, [])
    assert "small is finished" in again.stderr
    assert last_object(again) == first


def test_more_steps_go_on_from_the_finished_ones(cli, job, fleet):
    fleet(whole_run())
    cli("run", job())
    group = fleet(FakeGroup([started(step=4), step(5), step(6), done(6)]))
    result = cli("run", job(**{"steps: 4": "steps: 6"}))
    assert result.exit_code == 0
    assert group.launches[0].config["resume"].endswith("step-00000004")
    assert "4 of 6 steps are done" in result.stdout


def test_fresh_starts_over_and_keeps_the_old_folder(cli, job, fleet):
    fleet(whole_run())
    cli("run", job())
    group = fleet(whole_run())
    result = cli("run", job(), "--fresh")
    assert result.exit_code == 0
    assert group.launches[0].config["resume"] == ""
    assert Path("runs/small.old-1/step-00000004/manifest.json").is_file()


def test_another_model_in_the_folder_is_an_error(cli, job, fleet):
    fleet(whole_run())
    cli("run", job())
    group = fleet(FakeGroup())
    result = cli("run", job(**{"tiny-llama": "reference", "steps: 4": "steps: 6"}))
    assert result.exit_code == 2
    assert "checkpoints of another model (hidden 128 there, 512 here" in result.stderr
    assert group.launches == []


@pytest.mark.parametrize("steps", [4, 6])
def test_the_folder_of_another_job_is_refused_by_name(cli, job, fleet, steps):
    fleet(whole_run())
    cli("run", job())
    group = fleet(FakeGroup())
    result = cli("run", job(**{"name: small": "name: other", "steps: 4": f"steps: {steps}"}))
    assert (result.exit_code, group.launches) == (2, [])
    assert f"train.checkpoint.dir: {RUN.absolute()} belongs to job 'small', of which 4 of 4 steps are done" in result.stderr
    assert "name another folder, set name: small to go on with that job, or start over with --fresh" in result.stderr


def test_a_failed_run_exits_1_with_the_reason(cli, job, fleet):
    fleet(FakeGroup([started(), step(1), [(1, failed("loss is NaN at step 2, microbatch 3", "user"))]]))
    result = cli("run", job(), "--json")
    assert result.exit_code == 1
    assert "small failed after step 1: rank 1: loss is NaN at step 2, microbatch 3\nno checkpoint was saved" in result.stderr
    assert last_object(result)["state"] == "failed"


def test_a_restart_is_told(cli, job, fleet):
    save(RUN, 2)
    fleet(FakeGroup([started(step=2), step(3), [(1, exited(-9, 9))]], [started(step=2), step(3), step(4), done(4)]))
    result = cli("run", job())
    assert result.exit_code == 0
    assert "rank 1 was killed by SIGKILL" in result.stdout
    assert "restarting from step 2 (attempt 2)" in result.stdout


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_0(cli, job, fleet, signum):
    drained = [step(2), saved(RUN.absolute(), 2), done(2, drained=True)]
    group = fleet(FakeGroup([started(), step(1), lambda: signal.raise_signal(signum)], drained=drained))
    before = signal.getsignal(signum)
    result = cli("run", job())
    assert (result.exit_code, group.calls) == (0, ["start", "drain", "close", "close"])
    assert "small stopped after step 2: the newest checkpoint has 2 steps" in result.stdout
    assert signal.getsignal(signum) is before


def test_a_second_ctrl_c_kills_and_exits_130(cli, job, fleet):
    group = fleet(FakeGroup([started(), step(1), lambda: signal.raise_signal(2)], drained=[lambda: signal.raise_signal(2)]))
    assert cli("run", job()).exit_code == 130
    assert group.calls == ["start", "drain", "kill", "close", "close"]


def test_a_third_ctrl_c_waits_for_nothing(cli, job, fleet):
    def impatient():
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    group = fleet(FakeGroup([started(), impatient]))
    assert cli("run", job()).exit_code == 130
    assert group.calls == ["start", "close"]


def test_a_cluster_without_room_exits_1(cli, job, fleet):
    fleet(FakeGroup(refuse=PlacementError("needs 2 CPU, 1 is free")))
    result = cli("run", job())
    assert result.exit_code == 1
    assert "needs 2 CPU, 1 is free" in result.stderr


def test_a_folder_in_use_names_the_other_process(cli, job, fleet):
    fleet(FakeGroup())
    with locked(RUN):
        result = cli("run", job())
    assert result.exit_code == 1
    assert "is in use by pid" in result.stderr


def test_wrong_input_starts_nothing(cli, job, fleet):
    group = fleet(FakeGroup())
    result = cli("run", job(**{"steps: 4": "step: 4"}))
    assert (result.exit_code, group.launches) == (2, [])
    assert "train.step: unknown field, did you mean 'steps'?" in result.stderr
    assert not RUN.exists()


def test_metrics_targets_are_written_for_prometheus(cli, job, fleet):
    fleet(whole_run())
    result = cli("run", job())
    assert "metrics on here:1" in result.stdout
    assert json.loads((RUN / "metrics-targets.json").read_text())[0]["targets"] == ["here:1"]


def test_what_libraries_print_does_not_disturb_the_json(cli, job, fleet, capfd):
    def noisy():
        print("from Python")
        os.write(1, b"(raylet) from C\n")
        return []

    group = whole_run()
    group.scripts[0].insert(0, noisy)
    fleet(group)
    result = cli("run", job(), "--json")
    assert len(result.stdout.splitlines()) == 1 and last_object(result)["state"] == "finished"
    assert "from Python" in result.stderr
    heard = capfd.readouterr()
    assert ("(raylet) from C" in heard.out, "(raylet) from C" in heard.err) == (False, True)


def test_a_warning_is_shown_among_the_progress(cli, job, fleet):
    def waits():
        logging.getLogger("rayplane.runtime.ray.cluster").warning("the job needs 4 CPU, 1 of 4 are free")
        return []

    group = whole_run()
    group.scripts[0].insert(0, waits)
    fleet(group)
    assert "the job needs 4 CPU, 1 of 4 are free" in cli("run", job()).stdout


def test_a_run_whose_last_words_are_missing_is_taken_up_again(cli, job, fleet):
    fleet(whole_run())
    cli("run", job())
    Path("runs/small/result.json").unlink()
    group = fleet(FakeGroup([started(step=4), done(4, holdout=2.25)]))
    final = last_object(cli("run", job(), "--json"))
    assert len(group.launches) == 1
    assert (final["state"], final["steps"], final["holdout_before"], final["holdout_after"]) == ("finished", 4, 5.5, 2.25)
    assert final["final_loss"] == 0.25


def test_a_folder_that_goes_with_the_submitted_package_is_noted(cli, job, fleet, tmp_path):
    fleet(whole_run())
    unpacked = tmp_path / "working_dir_files" / "runs"
    assert "lies where Ray unpacked this job" in cli("run", job(**{"runs/small": str(unpacked)})).stdout


def test_fresh_leaves_the_folder_that_it_runs_in(cli, job, fleet, tmp_path):
    group = fleet(FakeGroup())
    result = cli("run", job(**{"runs/small": "."}), "--fresh")
    assert (result.exit_code, group.launches) == (1, [])
    assert "in which rayplane runs" in result.stderr
    assert (tmp_path / "data.txt").is_file()


def test_fresh_leaves_a_folder_that_holds_no_job(cli, job, fleet):
    RUN.mkdir(parents=True)
    (RUN / "thesis.tex").write_text("")
    fleet(FakeGroup())
    result = cli("run", job(), "--fresh")
    assert result.exit_code == 1
    assert "holds no job but other things" in result.stderr
    assert (RUN / "thesis.tex").is_file()


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", "{}"])
def test_a_damaged_result_is_made_anew(cli, job, fleet, damage):
    fleet(whole_run())
    cli("run", job())
    (RUN / "result.json").write_text(damage)
    fleet(FakeGroup([started(step=4), done(4, holdout=2.25)]))
    assert last_object(cli("run", job(), "--json"))["steps"] == 4
    assert json.loads((RUN / "result.json").read_text())["steps"] == 4


@pytest.mark.parametrize("error", [BrokenPipeError, OSError(28, "No space left on device")])
def test_a_screen_that_is_gone_stops_no_job(cli, job, fleet, monkeypatch, error):
    group = whole_run()

    def vanish():
        monkeypatch.setattr(sys.stdout, "write", raising)
        return []

    def raising(_):
        raise error

    group.scripts[0].insert(1, vanish)
    fleet(group)
    assert cli("run", job()).exit_code == 0
    assert json.loads((RUN / "result.json").read_text())["state"] == "finished"


def test_json_ends_with_an_object_when_the_input_is_wrong_too(cli, job):
    result = cli("run", job(**{"steps: 4": "step: 4"}), "--json")
    [line] = result.stdout.splitlines()
    assert (result.exit_code, json.loads(line)["exit_code"], json.loads(line)["state"]) == (2, 2, "failed")
    assert "train.step: unknown field" in json.loads(line)["message"]


def test_a_folder_that_is_gone_is_said(cli, job, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = cli("status")
    assert result.exit_code == 1
    assert "the folder in which rayplane runs is gone" in result.stderr
    monkeypatch.chdir(tmp_path)


def test_ctrl_c_while_the_command_is_still_importing_ends_it_without_a_word(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    done = subprocess.run(
        [sys.executable, "-m", "rayplane", "status"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
