"""What a job has taught is kept in a profile, and the next plan uses it: from a saved page, and from Prometheus over time."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from rayplane.cli import plan as plan_module
from rayplane.cli.app import app
from rayplane.cli.profiles import path_of
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.profile import read_profile

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
TWO_CORES = homogeneous({"here": 2}, "cpu", 2**33, {})
WINDOWS = 10
FORWARD = 0.415
"""Share of compute that is forward, as predicted for these cores."""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_module, "this_machine", lambda: TWO_CORES)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def plan(*args):
    return CliRunner().invoke(app, ["plan", "job.yaml", *args])


def planned(*args):
    done = plan("--json", *args)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout.splitlines()[-1])


def phases(compute, dp):
    """Seconds of a step by phase, where compute and dp take so many times as long as predicted."""
    terms = planned("--profile", "none")["time_s"]
    busy_s = compute * terms["compute"]
    return {"forward": FORWARD * busy_s, "backward": (1 - FORWARD) * busy_s, "dp": dp * terms["dp"], "host": 0.01}


def recorded(seconds, steps=3):
    """An exporter's page of two replicas."""
    lines = [f'rayplane_steps_total{{run="small",replica="0",stage="0",rank="0"}} {steps}']
    for rank in (0, 1):
        where = f'run="small",replica="{rank}",stage="0",rank="{rank}"'
        lines += [f'rayplane_step_seconds_total{{{where},phase="{phase}"}} {steps * s}' for phase, s in seconds.items()]
        lines += [f'rayplane_comm_bytes_total{{{where},axis="dp"}} 4096']
    return "\n".join(lines) + "\n"


@pytest.fixture
def prometheus():
    """A server that answers range queries with given windows: a list of seconds by phase, one for each minute."""
    windows = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            query = parse_qs(urlsplit(self.path).query)
            name = query["query"][0].removeprefix("increase(").partition("{")[0]
            begin, every = float(query["start"][0]), float(query["step"][0])
            body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(self.series(name, begin, every))}})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def series(self, name, begin, every):
            for rank in ("0", "1"):
                where = {"run": "small", "replica": rank, "stage": "0", "rank": rank}
                if name == "rayplane_steps_total" and rank == "0":
                    yield {"metric": where, "values": [[begin + i * every, "3"] for i in range(len(windows))]}
                if name == "rayplane_step_seconds_total":
                    for phase in windows[0]:
                        values = [[begin + i * every, str(3 * w[phase])] for i, w in enumerate(windows)]
                        yield {"metric": {**where, "phase": phase}, "values": values}

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.windows, server.url = windows, f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    server.server_close()


def test_a_saved_correction_is_what_the_next_plan_uses(here):
    (here / "page.txt").write_text(recorded(phases(2.0, 30.0)))
    before = planned("--profile", "none")
    taught = planned("--observed", "page.txt", "--save-profile", "learned.yaml")
    assert taught["observed"]["profile"] == "learned.yaml"
    assert taught["observed"]["changes"][0].startswith("place 1: pp2")
    after = planned("--profile", "learned.yaml")
    assert after["time_s"] == pytest.approx(taught["time_s"], rel=1e-3)
    assert after["time_s"]["compute"] == pytest.approx(2 * before["time_s"]["compute"], rel=0.1)
    figures = {f["name"]: f for f in after["figures"]}
    assert figures["dp correction"]["source"] == "observed"
    assert figures["dp correction"]["value"] == pytest.approx(30, rel=0.1)
    assert "tp correction" not in figures, "nothing was seen of it"


def test_the_file_says_of_what_run_and_when_and_how_sure_it_is(here):
    (here / "page.txt").write_text(recorded(phases(2.0, 30.0)))
    plan("--observed", "page.txt", "--save-profile", "learned.yaml")
    kept = read_profile(here / "learned.yaml")
    assert (kept.observed.run, kept.observed.model, kept.observed.layout, kept.observed.windows) == ("small", "reference", "dp2 mb2", 1)
    dp = next(f for f in kept.correction if f.term == "dp")
    assert dp.seen == 1 and 0 < dp.spread < 0.1
    shown = plan("--profile", "learned.yaml").stdout
    assert f"observed {kept.observed.date[:10]} of run small (reference) under dp2 mb2: compute correction" in shown


def test_own_is_found_without_a_name(here, tmp_path):
    (here / "page.txt").write_text(recorded(phases(2.0, 30.0)))
    taught = planned("--observed", "page.txt", "--save-profile", "own")
    assert taught["observed"]["profile"] == str(path_of(TWO_CORES))
    assert planned()["time_s"] == pytest.approx(taught["time_s"], rel=1e-3)
    with_none = planned("--profile", "none")
    assert with_none["time_s"]["compute"] < 0.6 * taught["time_s"]["compute"]


def test_learning_goes_on_from_what_was_kept(here):
    (here / "page.txt").write_text(recorded(phases(2.0, 30.0)))
    plan("--observed", "page.txt", "--save-profile", "learned.yaml")
    (here / "page.txt").write_text(recorded(phases(2.1, 33.0)))
    again = planned("--profile", "learned.yaml", "--observed", "page.txt", "--save-profile", "learned.yaml")["observed"]["terms"]
    assert again["dp"]["before"]["value"] == pytest.approx(30, rel=0.1)
    assert again["dp"]["after"]["value"] == pytest.approx(33, rel=0.05)
    assert read_profile(here / "learned.yaml").observed.run == "small"


def test_another_profile_is_not_overwritten(here):
    (here / "page.txt").write_text(recorded(phases(2.0, 30.0)))
    plan("--observed", "page.txt", "--save-profile", "learned.yaml")
    text = (here / "learned.yaml").read_text()
    done = plan("--profile", "none", "--observed", "page.txt", "--save-profile", "learned.yaml")
    assert (done.exit_code, "learned.yaml holds another profile than this plan began from" in done.output) == (1, True)
    assert (here / "learned.yaml").read_text() == text
    (here / "notes.txt").write_text("mine\n")
    assert plan("--observed", "page.txt", "--save-profile", "notes.txt").exit_code == 2
    assert (here / "notes.txt").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("page.txt/x.yaml", "page.txt is no folder"), ("/dev/null/x.yaml", "/dev/null is no folder"), ("n" * 300, "File name too long")],
)
def test_where_nothing_can_be_written_is_said_with_the_option(here, path, reason):
    (here / "page.txt").write_text(recorded(phases(2.0, 30.0)))
    done = plan("--observed", "page.txt", "--save-profile", path)
    assert (done.exit_code, reason in done.output) == (1, True)
    assert "name another file with --save-profile" in done.output


def test_without_an_observation_there_is_nothing_to_save(here):
    done = plan("--save-profile", "learned.yaml")
    assert (done.exit_code, "name a source with --observed" in done.output) == (2, True)
    assert not (here / "learned.yaml").exists()


def test_windows_of_prometheus_teach_the_same_and_bad_ones_do_not(here, prometheus):
    good = phases(2.0, 30.0)
    bad = {name: 5 * s for name, s in good.items()}
    prometheus.windows += [bad if i in (2, 5, 6) else good for i in range(WINDOWS)]
    prometheus.windows[4] = {**good, "dp": math.nan}
    taught = planned("--observed", prometheus.url, "--save-profile", "learned.yaml")["observed"]
    assert taught["terms"]["compute"]["after"]["value"] == pytest.approx(2.0, rel=0.1)
    assert taught["terms"]["dp"]["after"]["value"] == pytest.approx(30.0, rel=0.1)
    assert any("dp is nan" in text for text in taught["ignored"])
    assert taught["changes"][0].startswith("place 1: pp2")
    assert read_profile(here / "learned.yaml").observed.windows == WINDOWS


def test_drift_is_followed_from_one_observation_to_the_next(here, prometheus):
    for n, dp in enumerate((20.0, 24.0, 29.0)):
        prometheus.windows[:] = [phases(1.5, dp)] * WINDOWS
        known = ("--profile", "learned.yaml") if n else ()
        terms = planned(*known, "--observed", prometheus.url, "--save-profile", "learned.yaml")["observed"]["terms"]
        assert terms["dp"]["after"]["value"] == pytest.approx(dp, rel=0.06)
        # What of it is computing and what launching, one layout does not show; both together do.
        compute = [planned("--profile", name)["time_s"]["compute"] for name in ("learned.yaml", "none")]
        assert compute[0] == pytest.approx(1.5 * compute[1], rel=0.06)
