"""`rayplane calibrate` measures through real ranks; what it has written is what plan and run then price with."""

import json
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from rayplane.cli import calibrate as calibrate_module
from rayplane.cli import plan as plan_module
from rayplane.cli.app import app
from rayplane.cli.profiles import path_of
from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.runtime.group import RankMessage
from rayplane.spec.profile import profile_text, read_profile
from tests.plan.profiles import measured

HERE = homogeneous({"here": 2}, "cpu", 2**32, {})
JOB = """
name: small
model: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, mlp: 128, vocab: 300}
train:
  data: {path: ["python://stdlib"], seq_len: 32}
  steps: 2
  global_batch: 8
  checkpoint: {dir: runs/small}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a job, a home of its own, and a machine of two cores."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    for module in (calibrate_module, plan_module):
        monkeypatch.setattr(module, "this_machine", lambda: HERE)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def invoke(*args):
    return CliRunner().invoke(app, list(args))


def planned(*args):
    answer = json.loads(invoke("plan", "job.yaml", "--json", *args).stdout)
    return answer["step_s"], {figure["name"]: figure["source"] for figure in answer["figures"]}


def test_what_is_measured_is_what_the_planner_uses(here):
    table_s, bare = planned()
    assert "measured" not in bare.values()
    done = invoke("calibrate", "job.yaml", "--quick")
    assert done.exit_code == 0, done.output
    path = path_of(HERE)
    assert f"written to {path}" in done.stdout
    assert {"all_reduce", "all_gather", "reduce_scatter", "message"} <= set(done.stdout.split())
    profile = read_profile(path)
    assert (profile.hardware.device, profile.hardware.devices) == ("cpu", 2)
    assert profile.hardware.name
    assert {row.rows for row in profile.products} == {128, 64, 256}
    assert {(row.tp, row.cp) for row in profile.layers} == {(1, 1), (2, 1), (1, 2)}
    assert {row.op for row in profile.collectives} == {"all_reduce", "all_gather", "reduce_scatter"}
    step_s, sources = planned()
    assert {sources[n] for n in ("products", "attention", "memory", "launch", "optimizer", "link inside", "jitter")} == {"measured"}
    assert sources["link across"] == "assumed"
    assert step_s != table_s
    assert planned("--profile", "none") == (table_s, bare)
    assert "figures measured 20" in invoke("plan", "job.yaml").stdout


def test_a_profile_can_be_named(here):
    (here / "fast.yaml").write_text(profile_text(measured(HERE, device("cpu"))))
    assert "figures measured 2026-11-30 on imaginary: products" in invoke("plan", "job.yaml", "--profile", "fast.yaml").stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "p.yaml: no such file"),
        ("format: 1\n", "p.yaml:1: date: is missing"),
        ("steps\n", "p.yaml:1: expected fields"),
    ],
)
def test_a_profile_that_is_none_is_an_error_by_file_and_line(here, content, message):
    if content:
        (here / "p.yaml").write_text(content)
    done = invoke("plan", "job.yaml", "--profile", "p.yaml")
    assert (done.exit_code, message in done.output) == (2, True), done.output


def test_a_profile_of_other_devices_is_an_error(here):
    gpus = homogeneous({"here": 2}, "h100-sxm", 80 * 10**9, {})
    (here / "gpu.yaml").write_text(profile_text(measured(HERE, device("cpu"))).replace("device: cpu", "device: h100-sxm"))
    assert gpus.num_devices == 2
    done = invoke("plan", "job.yaml", "--profile", "gpu.yaml")
    assert "gpu.yaml: hardware.device: measured on h100-sxm, the cluster has cpu" in done.output


def test_a_rank_that_fails_ends_it_with_its_reason(here, monkeypatch):
    class Broken:
        def start(self, launch, give_up):
            assert launch.entry == "rayplane.train.calibration"

        def poll(self, timeout_s):
            return [RankMessage(1, {"type": "failed", "message": "no memory is left"})]

    @contextmanager
    def opened(runtime):
        yield HERE, Broken()

    monkeypatch.setattr(calibrate_module, "_open", opened)
    done = invoke("calibrate", "job.yaml")
    assert (done.exit_code, done.output.splitlines()[-1]) == (1, "rank 1 could not measure: no memory is left")


def test_a_place_that_cannot_be_written_is_an_error_before_anything_is_measured(here):
    (here / "file").write_text("")
    done = invoke("calibrate", "job.yaml", "--out", "file/profile.yaml")
    assert done.exit_code == 1
    assert "the profile cannot be written to file/profile.yaml: file is no folder; name another file with --out" in done.output
    assert "measuring" not in done.output
