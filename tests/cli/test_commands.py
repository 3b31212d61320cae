"""`rayplane validate`, `status`, `plan`, and how errors leave the command."""

import json
from pathlib import Path

import pytest
from fake_group import FakeGroup, done, saved, started, step

import rayplane
from rayplane.cli import app as app_module
from rayplane.cli import plan as plan_module
from rayplane.cli import status as status_module
from rayplane.cli.fleet import _as_described, gpu_kind, this_machine
from rayplane.cli.words import as_json
from rayplane.control.lock import locked
from rayplane.errors import PlacementError, SpecError
from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.machine.names import KINDS, kind_of
from rayplane.spec.load import load_job

HERE = homogeneous({"here": 2}, "cpu", 2**32, {})
DESCRIBED = (
    "layout: {dp: 2, micro_batch: 2}\ncluster: {nodes: [{device: cpu, devices: 2}], links: {node: {gbytes_s: 1.5, latency_us: 9.0}}}"
)


def test_version(cli):
    assert cli("--version").stdout == f"rayplane {rayplane.__version__}\n"


def test_validate_says_what_a_job_comes_to(cli, job):
    result = cli("validate", job())
    assert result.exit_code == 0
    assert result.stdout.startswith("job.yaml: ok: tiny-llama, 1.54 M parameters")
    assert result.stdout.endswith("4 steps of 128 tokens\n")


def test_validate_names_every_problem_of_every_file(cli, job):
    good, bad = job("good.yaml"), job("bad.yaml", **{"steps: 4": "steps: 0", "tiny-llama": "tiny-lama"})
    result = cli("validate", good, bad)
    assert result.exit_code == 2
    assert "good.yaml: ok" in result.stdout
    assert "bad.yaml:5: train.steps" in result.stderr
    assert "did you mean 'tiny-llama'?" in result.stderr


def test_validate_json_has_file_line_and_field(cli, job):
    bad = job("bad.yaml", **{"steps: 4": "steps: 0"})
    result = cli("validate", bad, "--json")
    assert result.exit_code == 2
    [check] = json.loads(result.stdout)
    [problem] = check["problems"]
    assert (check["ok"], problem["file"], problem["line"], problem["field"]) == (False, "bad.yaml", 5, "train.steps")


def test_status_before_and_after_a_run(cli, job, fleet):
    assert "no jobs under" in cli("status").stdout
    missing = cli("status", job())
    assert (missing.exit_code, "holds no job" in missing.stderr) == (1, True)
    fleet(FakeGroup([started(), step(1), step(2), saved(Path("runs/small").absolute(), 2), step(3), step(4), done(4)]))
    cli("run", job())
    found = json.loads(cli("status", "job.yaml", "--json").stdout)
    assert (found["state"], found["step"], found["steps"], found["loss"]) == ("finished", 4, 4, 0.25)
    assert (found["driver_alive"], found["restarts"], found["tokens_per_s"]) == (False, 0, 64.0)
    assert found["checkpoint"].endswith("step-00000002")
    assert [j["name"] for j in json.loads(cli("status", "--json").stdout)] == ["small"]
    assert "finished" in cli("status", "runs/small").stdout


def test_status_of_a_driver_that_vanished_is_lost(cli, job, fleet):
    statuses = []

    def look():
        with locked(Path("other")):
            statuses.append(json.loads(cli("status", "runs/small", "--json").stdout))
        raise SystemExit(9)

    fleet(FakeGroup([started(), step(1), look]))
    cli("run", job())
    assert (statuses[0]["state"], statuses[0]["driver_alive"]) == ("running", True)
    path = Path("runs/small/state.json")
    path.write_text(path.read_text().replace('"failed"', '"running"'))
    found = json.loads(cli("status", "runs/small", "--json").stdout)
    assert (found["state"], found["driver_alive"]) == ("lost", False)


def test_status_of_a_job_without_a_step_shows_no_rate(cli, job, fleet):
    fleet(FakeGroup([started(), lambda: [(0, {"type": "failed", "kind": "user", "message": "no", "traceback": ""})]]))
    cli("run", job())
    assert cli("status", "runs/small").stdout.splitlines()[1].split()[:6] == ["small", "failed", "0/4", "-", "-", "dp2"]


def test_status_refuses_a_state_that_is_not_ours(cli):
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/state.json").write_text("{}")
    result = cli("status", "runs/x")
    assert result.exit_code == 1
    assert "is not a job's state" in result.stderr


def test_a_damaged_state_does_not_hide_the_other_jobs(cli, job, fleet):
    fleet(FakeGroup([started(), done(4)]))
    cli("run", job())
    Path("runs/broken").mkdir()
    Path("runs/broken/state.json").write_text('{"step": "x"}')
    result = cli("status", "--json")
    assert [found["name"] for found in json.loads(result.stdout)] == ["small"]
    assert (result.exit_code, "runs/broken/state.json is not a job's state" in result.stderr) == (1, True)


def test_plan_ranks_layouts_for_this_machine(cli, job, monkeypatch):
    monkeypatch.setattr(plan_module, "this_machine", lambda: HERE)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = job(**{"layout: {dp: 2, micro_batch: 2}": "layout: auto"})
    result = cli("plan", path)
    assert result.exit_code == 0, result.stderr
    assert "dp2" in result.stdout
    assert "--all shows them" in result.stdout
    assert len(cli("plan", path, "--all").stdout) > len(result.stdout)
    assert json.loads(cli("plan", path, "--json").stdout)["layout"]["dp"] >= 1


def test_plan_shows_one_refusal_for_each_choice_of_degrees(cli, job):
    eight = "layout: auto\ncluster: {nodes: [{device: cpu, devices: 8}]}"
    path = job(**{"layout: {dp: 2, micro_batch: 2}": eight})
    refused = cli("plan", path).stdout.partition("refused")[2].splitlines()
    assert [line for line in refused if "tp8" in line and "leaves ranks without a head" in line]
    degrees = [line.split(" mb")[0].replace(" 1f1b", "").replace(" gpipe", "") for line in refused if " mb" in line]
    assert len(degrees) == len(set(degrees))


def test_plan_for_a_described_cluster_asks_no_machine(cli, job, monkeypatch):
    def nowhere():
        raise AssertionError

    monkeypatch.setattr(plan_module, "this_machine", nowhere)
    result = cli("plan", job(**{"layout: {dp: 2, micro_batch: 2}": DESCRIBED}))
    assert result.exit_code == 0, result.stderr


def test_a_described_cluster_must_be_the_one_at_hand(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_job(job(**{"layout: {dp: 2, micro_batch: 2}": DESCRIBED}))
    assert _as_described(spec, HERE).links.node.gbytes_s == 1.5
    with pytest.raises(SpecError, match=r"describes 1 x 2 cpu, but this cluster has 1 x 4 cpu; write `cluster: auto`"):
        _as_described(spec, homogeneous({"here": 4}, "cpu", 2**32, {}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA B200", "b200"),
    ],
)
def test_gpus_are_found_in_the_catalog(name, kind):
    assert device(gpu_kind(name)).name == kind


def test_an_unknown_gpu_is_refused_with_a_remedy():
    with pytest.raises(PlacementError, match="CUDA_VISIBLE_DEVICES="):
        gpu_kind("NVIDIA GeForce GTX 1060")


def test_this_machine_is_one_node():
    cluster = this_machine()
    assert len(cluster.nodes) == 1
    assert cluster.num_devices >= 1
    assert cluster.memory_bytes > 2**20


def test_an_unexpected_error_leaves_a_traceback_file(cli, monkeypatch, tmp_path):
    def broken(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(status_module, "read_status", broken)
    monkeypatch.setattr(app_module.tempfile, "tempdir", str(tmp_path))
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/state.json").write_text("{}")
    result = cli("status", "runs/x")
    assert result.exit_code == 1
    assert "ZeroDivisionError: oops" in result.stderr
    assert "Traceback" not in result.stderr
    [log] = tmp_path.glob("rayplane-*.log")
    assert "Traceback" in log.read_text()


def test_an_unknown_option_exits_2(cli):
    assert cli("run", "--nonsense").exit_code == 2


def test_json_has_no_nan():
    assert json.loads(as_json({"a": [float("nan"), 1.0, (float("inf"),)]})) == {"a": [None, 1.0, [None]]}


def test_every_gpu_name_leads_to_the_device_catalog():
    assert {device(kind).name for _, kind in KINDS} == {kind for _, kind in KINDS}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("A100", "a100-40gb"),
        ("A100-80G", "a100-80gb"),
        ("H100", "h100-sxm"),
        ("H20", ""),
        ("GH200", ""),
        ("AMD-Instinct-MI300X-OAM", "mi300x"),
    ],
)
def test_gpus_as_ray_names_them(name, kind):
    assert kind_of(name) == kind
