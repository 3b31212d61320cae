"""`rayplane explain`: what it prints, its object, its page, and what it refuses."""

import json
import re

import pytest

CLUSTER = "cluster: {nodes: [{name: gpu, device: h100-sxm, devices: 4, count: 2}]}\n"
HEADINGS = (
    "chosen: ",
    "lost",
    "axes, innermost first",
    "memory by stage",
    "the step in simulated time",
    "How long does a microbatch of ",
    "How many samples to a microbatch?",
    "figures table: ",
)


@pytest.fixture
def described(job):
    """A job on a described cluster."""
    path = job()
    path.write_text(path.read_text() + CLUSTER)
    return path


@pytest.fixture
def piped(job):
    """The same with a pipeline."""
    path = job(**{"layout: {dp: 2, micro_batch: 2}": "layout: {pp: 2, micro_batch: 1, boundaries: [4, 4]}"})
    path.write_text(path.read_text() + CLUSTER)
    return path


def test_every_section_is_printed_in_order(cli, job):
    path = job(**{"layout: {dp: 2, micro_batch: 2}": "layout: auto"})
    path.write_text(path.read_text() + CLUSTER)
    result = cli("explain", path)
    assert result.exit_code == 0, result.stderr
    places = [result.stdout.index(heading) for heading in HEADINGS]
    assert places == sorted(places)
    assert len(re.findall(r"^ ?\d+\. .*\?$", result.stdout, re.MULTILINE)) == 13
    assert "█" in result.stdout


def test_no_line_is_wider_than_the_screen(cli, described):
    result = cli("explain", described)
    assert max(map(len, result.stdout.splitlines())) <= 200


def test_a_given_layout_is_explained_as_it_is(cli, piped):
    result = cli("explain", piped)
    assert "chosen: pp2 1f1b mb1 4+4" in result.stdout
    assert "no other layout was priced" in result.stdout
    assert re.search(r"^0  F0", result.stdout, re.MULTILINE), "the timeline has a row for stage 0"
    assert re.search(r"^ pp +2 +island ", result.stdout, re.MULTILINE)


def test_the_object_agrees_with_the_plan(cli, described):
    told = json.loads(cli("explain", described, "--json").stdout)
    planned = json.loads(cli("plan", described, "--json").stdout)
    assert told["step_s"] == planned["step_s"]
    assert told["layout"] == planned["layout"]
    assert told["memory_bytes"] == planned["memory_bytes"] == max(s["memory_bytes"] for s in told["stages"])
    assert [a["number"] for a in told["answers"]] == list(range(1, 14))
    assert told["axes"][0]["name"] == "dp"
    assert {s["name"] for s in told["sweeps"]} >= {"tp", "micro_batch"}


def test_what_ifs_are_answered_in_the_order_they_are_asked(cli, described):
    result = cli("explain", described, "--json", "--what-if", "nic=2x", "--what-if", "devices=+4", "--what-if", "hbm=40,nvlink=0.5x")
    asked = json.loads(result.stdout)["what_ifs"]
    assert [w["change"] for w in asked] == ["nic=2x", "devices=+4", "hbm=40,nvlink=0.5x"]
    assert asked[0]["meaning"] == "network card 50 → 100 GB/s per device"
    assert all(w["best_s"] > 0 and w["same_layout_s"] > 0 for w in asked)
    shown = cli("explain", described, "--what-if", "nic=2x").stdout
    assert "what if nic=2x: network card 50 → 100 GB/s per device\n  best then " in shown


def test_a_bad_what_if_names_value_and_remedy(cli, described):
    result = cli("explain", described, "--what-if", "nic=fast")
    assert result.exit_code == 2
    assert result.stderr.startswith("--what-if nic=fast: cannot read 'fast'; write a factor (2x), a change (+8, +25%) or GB/s")
    as_object = cli("explain", described, "--json", "--what-if", "nick=2x")
    assert json.loads(as_object.stdout)["exit_code"] == 2
    assert "did you mean nic?" in as_object.stderr


def test_a_page_is_written(cli, described, tmp_path):
    result = cli("explain", described, "--html", "why.html", "--what-if", "nic=2x")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "wrote why.html\n"
    page = (tmp_path / "why.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "nic=2x" in page
    assert not re.search(r"""(src|href)=["']https?:""", page), "it needs nothing but itself"


def test_a_page_and_an_object_may_be_had_at_once(cli, described, tmp_path):
    result = cli("explain", described, "--html", "why.html", "--json")
    assert json.loads(result.stdout)["name"] == "small"
    assert (tmp_path / "why.html").is_file()


def test_a_page_that_cannot_be_written_is_an_error(cli, described):
    result = cli("explain", described, "--html", "no/such/why.html")
    assert (result.exit_code, "--html: cannot write no/such/why.html" in result.stderr) == (1, True)


def test_a_layout_that_does_not_fit_says_what_would(cli, job):
    path = job(**{"layout: {dp: 2, micro_batch: 2}": "layout: {dp: 3, tp: 4}"})
    path.write_text(path.read_text() + CLUSTER)
    result = cli("explain", path)
    assert result.exit_code == 2
    assert "nearest possible" in result.stderr


def test_a_job_that_serves_is_sent_to_plan(cli, tmp_path):
    (tmp_path / "serve.yaml").write_text("name: s\nmodel: {preset: tiny-llama}\nserve: {}\n" + CLUSTER)
    result = cli("explain", "serve.yaml")
    assert result.exit_code == 2
    assert "is a job that serves, and explain is about training; see rayplane plan serve.yaml for its layouts" in result.stderr
