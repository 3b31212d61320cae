"""`rayplane plan --observed` corrects its figures by what a job's exporters say, and says what changes."""

import json

import pytest
from typer.testing import CliRunner

from rayplane.cli import plan as plan_module
from rayplane.cli.app import app
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.report import StepReport
from rayplane.telemetry.export import Exporter

JOB = """
name: small
model: {preset: reference}
train:
  data: {path: ["python://stdlib"], seq_len: 256}
  steps: 2
  global_batch: 16
  checkpoint: {dir: runs/small}
layout: {dp: 2, micro_batch: 2}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_module, "this_machine", lambda: homogeneous({"here": 2}, "cpu", 2**33, {}))
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def plan(*args):
    return CliRunner().invoke(app, ["plan", "job.yaml", *args])


@pytest.fixture
def exporter(here):
    """A job on two replicas whose compute takes twice as long as predicted, and dp thirty times."""
    terms = json.loads(plan("--json").stdout)["time_s"]
    running = Exporter("small", 0)
    for rank in (0, 1):
        phases = {"forward": 2 * terms["compute"] / 3, "backward": 4 * terms["compute"] / 3, "dp": 30 * terms["dp"], "optimizer": 0.01}
        for step in (1, 2, 3):
            running.observe(StepReport(rank, rank, 0, step, 2.0, 1.0, 1e-3, 4096, sum(phases.values()), phases, {"dp": 4096}))
    yield running
    running.close()


def test_multipliers_are_learned_and_layouts_ranked_anew(exporter):
    source = f"http://127.0.0.1:{exporter.port}/metrics"
    answer = json.loads(plan("--json", "--observed", source).stdout)
    learned = answer["observed"]
    assert learned["layout"] == "dp2 mb2"
    assert learned["terms"]["compute"]["after"]["value"] == pytest.approx(2.0, rel=0.1)
    assert learned["terms"]["dp"]["after"]["value"] == pytest.approx(30.0, rel=0.1)
    assert learned["terms"]["tp"] == {"before": {"value": 1.0, "spread": 0.3}, "after": {"value": 1.0, "spread": 0.3}, "phases_seen": 0}
    assert learned["changes"][0].startswith("place 1: pp2")
    assert answer["time_s"]["compute"] > 1.8 * json.loads(plan("--json").stdout)["time_s"]["compute"]
    shown = plan("--observed", source).stdout
    assert "observed under dp2 mb2; how many times as long as predicted each term takes:" in shown
    assert "place 1: pp2" in shown


def test_a_saved_page_will_do_and_what_is_no_number_is_ignored(exporter, here):
    from urllib.request import urlopen

    text = urlopen(f"http://127.0.0.1:{exporter.port}/metrics").read().decode()
    lines = [
        line if 'rank="1"' not in line or 'phase="dp"' not in line else f"{line.rpartition(' ')[0]} NaN" for line in text.splitlines()
    ]
    (here / "saved.txt").write_text("\n".join(lines) + "\n")
    answer = json.loads(plan("--json", "--observed", "saved.txt").stdout)["observed"]
    assert answer["ignored"] == ["rank 1: dp is nan"]
    assert answer["terms"]["dp"]["after"]["value"] == pytest.approx(30.0, rel=0.1)


def test_a_run_that_is_not_there_is_an_error(exporter, here):
    (here / "job.yaml").write_text(JOB.replace("name: small", "name: other"))
    done = plan("--observed", f"http://127.0.0.1:{exporter.port}/metrics")
    assert done.exit_code == 1
    assert "no steps of a run called 'other'; is it the job's name" in done.output


def test_another_layout_is_an_error(exporter, here):
    (here / "job.yaml").write_text(JOB.replace("dp: 2", "pp: 2"))
    done = plan("--observed", f"http://127.0.0.1:{exporter.port}/metrics")
    assert (done.exit_code, "write the layout that the job ran under into its file" in done.output) == (2, True)


@pytest.mark.parametrize(
    "labels", ['run="small"', 'run="small",replica="x",stage="0",rank="0",phase="dp"', 'run="small",replica="0",stage="0",rank="0"']
)
def test_series_with_other_labels_are_refused_in_words(here, labels):
    (here / "page.txt").write_text(f"rayplane_step_seconds_total{{{labels}}} 3.0\nrayplane_steps_total{{{labels}}} 5.0\n")
    refused = plan("--observed", "page.txt")
    assert refused.exit_code == 1
    assert "has other labels than rayplane writes" in refused.output and "should not" not in refused.output
