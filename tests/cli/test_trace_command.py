"""`rayplane trace`: what it draws, what it refuses, and a measured step beside the planned one."""

import json
import re

import pytest
from training_job import Run

from rayplane.cli import trace as trace_module
from rayplane.cli.timelines import alone
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout
from rayplane.spec.report import RankTrace, Stretch
from rayplane.spec.schedule import Op
from rayplane.telemetry.trace import write

PIPE = {"layout: {dp: 2, micro_batch: 2}": "layout: {pp: 2, micro_batch: 1, boundaries: [4, 4]}"}
LAYOUT = Layout(pp=2, boundaries=(4, 4))
START_S = 5.0


def record(folder, layout, step, slower=1.0):
    """Leave the trace of a step of 4 microbatches that went as unit costs have it, `slower` times so, replica 1 twice as slow again."""
    for stage, row in enumerate(alone(layout, 4).timeline.ranks):
        for replica in range(layout.dp):
            stretches, now = [], 0.0
            for s in row:
                start, end = (START_S + at_s * slower * (1 + replica) for at_s in (s.start_s, s.end_s))
                work = {Op.FORWARD: "forward", Op.BACKWARD: "backward"}.get(s.action.op, "host")
                stretches += [Stretch("recv_wait", str(s.action), now, start), Stretch(work, str(s.action), start, end)]
                now = end
            write(folder, RankTrace(replica * layout.pp + stage, step, layout, "here", 1000.0 + step, tuple(stretches)))


@pytest.mark.parametrize("schedule", BUILDERS)
def test_every_schedule_is_drawn(cli, schedule):
    result = cli("trace", "--schedule", schedule, "--pp", 3, "--microbatches", 5, "--width", 500)
    assert result.exit_code == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if re.match(r"\d  \.*F", line)]
    chunks = 6 if schedule in ("interleaved", "zbv") else 3
    expected = {f"F{c}.{m}" for c in range(chunks) for m in range(5)}
    assert len(rows) == 3
    assert set(re.findall(r"F\d\.\d", "".join(rows))) == expected
    assert max(map(len, rows)) <= 500


def test_the_docstring_shows_what_is_printed(cli):
    result = cli("trace", "--schedule", "zb-h1", "--pp", 2, "--microbatches", 4, "--width", 43)
    assert "\n".join(result.stdout.splitlines()[:3]) in trace_module.__doc__


def test_figures_of_a_schedule_are_those_of_the_book(cli):
    figures = json.loads(cli("trace", "--schedule", "1f1b", "--pp", 4, "--microbatches", 8, "--json").stdout)
    planned = figures["planned"]
    assert planned["step_s"] == pytest.approx(3 * (8 + 3))
    assert planned["bubble"] == pytest.approx(3 / 11)
    assert [s["in_flight"] for s in planned["stages"]] == [4, 3, 2, 1]
    assert figures["measured"] is None


def test_zero_bubble_says_what_waits_for_its_weight_gradients(cli):
    stages = json.loads(cli("trace", "--schedule", "zb-h1", "--json").stdout)["planned"]["stages"]
    assert [(s["in_flight"], s["waiting_for_weights"]) for s in stages] == [(4, 0), (3, 1), (2, 2), (1, 3)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give a job file, or with --schedule one of 1f1b"),
        (("--schedule", "zb"), "--schedule zb: there is no such schedule; use one of 1f1b, gpipe"),
        (("--schedule", "zbv", "--vpp", "3"), "--vpp: 3 does not fit schedule zbv"),
        (("job.yaml", "--pp", "2"), "give either them or a job file"),
    ],
)
def test_what_cannot_be_drawn_is_refused(cli, job, arguments, said):
    job()
    result = cli("trace", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_step_of_a_job_is_its_plans(cli, job):
    path = job(**PIPE)
    drawn, plan = (json.loads(cli(command, path, "--json").stdout) for command in ("trace", "plan"))
    assert drawn["planned"]["step_s"] == pytest.approx(plan["step_s"])
    assert drawn["planned"]["bubble"] == pytest.approx(plan["bubble"])
    assert drawn["layout"] == "pp2 1f1b mb1 4+4"


def test_a_measured_step_stands_beside_the_planned_one(cli, job, tmp_path):
    path = job(**PIPE)
    record(tmp_path / "runs" / "small", LAYOUT, step=10, slower=9.0)
    record(tmp_path / "runs" / "small", LAYOUT, step=11)
    measured = json.loads(cli("trace", path, "--json").stdout)["measured"]
    expected = alone(LAYOUT, 4).timeline
    assert measured["step"] == 11
    assert measured["bubble"] == pytest.approx(expected.bubble)
    assert measured["step_s"] == pytest.approx(expected.end_s)
    assert [s["busy_s"] for s in measured["stages"]] == pytest.approx([12.0, 12.0])
    shown = cli("trace", path, "--width", 200).stdout
    assert "measured in step 11: step 15.00 s, bubble 20.0%" in shown
    planned, seen = shown.split("measured in step")
    assert max(len(line) for line in planned.splitlines()[1:]) < 10, "on the scale of the measured step the plan is short"
    assert all(name in seen for name in ("F0.0", "F1.3", "B1.0", "B0.3"))


def test_the_slowest_replica_is_shown(cli, job, tmp_path):
    layout = Layout(dp=2, pp=2, boundaries=(4, 4))
    path = job(**PIPE)
    record(tmp_path / "runs" / "small", layout, step=10)
    result = cli("trace", path)
    assert "measured in step 10 under dp2 pp2 1f1b mb1 4+4, replica 1: step 30.00 s" in result.stdout


def test_stages_that_only_one_of_the_two_has_are_shown(cli, job, tmp_path):
    path = job(**PIPE)
    record(tmp_path / "runs" / "small", Layout(pp=3, boundaries=(4, 2, 2)), step=10)
    last = cli("trace", path).stdout.splitlines()[-1].split()
    assert last == ["2", "-", "12.00", "s", "-", "33.3%", "-"]


def test_the_file_holds_plan_and_every_recorded_step(cli, job, tmp_path):
    path = job(**PIPE)
    for step in (10, 11):
        record(tmp_path / "runs" / "small", LAYOUT, step=step)
    result = cli("trace", path, "--out", "trace.json")
    assert result.exit_code == 0, result.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(processes.values()) == {
        "planned, stage 0",
        "planned, stage 1",
        "measured, replica 0, stage 0",
        "measured, replica 0, stage 1",
    }
    first = [e["ts"] for e in events if e["ph"] == "X" and e["name"] == "F0.0" and processes[e["pid"]].startswith("measured")]
    assert first == [START_S * 1e6, (START_S + 1) * 1e6], "steps were one second apart"


def test_a_file_that_cannot_be_written_is_an_error(cli):
    result = cli("trace", "--schedule", "1f1b", "--out", "no/such/folder/t.json")
    assert (result.exit_code, "--out: cannot write no/such/folder/t.json" in result.stderr) == (1, True)


def test_a_damaged_trace_is_named(cli, job, tmp_path):
    path = job(**PIPE)
    record(tmp_path / "runs" / "small", LAYOUT, step=10)
    (tmp_path / "runs" / "small" / "trace" / "step-00000010" / "rank-00001.json").write_text("{}")
    result = cli("trace", path)
    assert result.exit_code == 1
    assert "rank-00001.json is not a rank's trace" in result.stderr


def test_a_trace_after_the_last_step_is_a_mistake(cli, job):
    path = job(**{"  global_batch": "  trace: {first: 5}\n  global_batch"})
    result = cli("trace", path)
    assert result.exit_code == 2
    assert "train.trace.first: 5 is more than train.steps (4); nothing would be recorded" in result.stderr


def test_a_run_records_what_trace_then_draws(cli, tmp_path):
    with Run(tmp_path, "--runtime", "local", steps="5\n  trace: {first: 3, steps: 2}") as run:
        assert run.end() == 0, run.said()
    result = cli("trace", "job.yaml", "--json")
    figures = json.loads(result.stdout)
    assert figures["measured"]["layout"] == figures["layout"] == "pp2 1f1b mb2 1+1"
    assert figures["measured"]["step"] == 4
    assert 0 < figures["measured"]["bubble"] < 1
    assert not result.stderr
