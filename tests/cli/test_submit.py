"""`rayplane submit` with a job server in memory: what it sends, follows, stops and refuses."""

import json
import signal
from types import SimpleNamespace

import pytest
from ray.exceptions import AuthenticationError

import rayplane
from rayplane.cli.submission import NO_TOKEN, WRONG_TOKEN, Submission, free_id
from rayplane.errors import RayplaneError


class Server:
    """Ray's client. `script` has (status, logs) for each look."""

    def __init__(self, *script, jobs=(), refuse=None):
        self.script, self.jobs, self.refuse = list(script), list(jobs), refuse
        self.sent, self.stopped = [], []

    def __call__(self, address):
        if self.refuse:
            raise self.refuse
        return self

    def list_jobs(self):
        return self.jobs

    def submit_job(self, **sent):
        self.sent.append(sent)
        if any(job.submission_id == sent["submission_id"] for job in self.jobs):
            raise RuntimeError(f"Request failed with status code 500: Job {sent['submission_id']} already exists.")
        return sent["submission_id"]

    def get_job_info(self, name):
        step = self.script[0]
        if isinstance(step, Exception):
            self.script.pop(0)
            raise step
        return details(name, step[0], step[2] if len(step) > 2 else None)

    def get_job_logs(self, name):
        step = self.script.pop(0)
        if len(step) > 3:
            step[3]()
        return step[1]

    def stop_job(self, name):
        self.stopped.append(name)
        return True


def details(name, status, exit_code=None, job="small"):
    return SimpleNamespace(
        submission_id=name, metadata={"rayplane.job": job}, status=SimpleNamespace(value=status), message="", driver_exit_code=exit_code
    )


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265")

    def use(*script, **options):
        server = Server(*script, **options)
        monkeypatch.setattr("ray.job_submission.JobSubmissionClient", server)
        monkeypatch.setattr("rayplane.cli.submit.POLL_S", 0.01)
        monkeypatch.setattr("rayplane.cli.submission.RETRY_S", 0.01)
        return server

    return use


def test_a_job_is_sent_with_its_folder_its_grace_and_what_it_is(cli, job, server):
    sent = server()
    job()
    more = '{"env_vars": {"A": "1"}, "excludes": ["big"], "pip": ["x"]}'
    answer = cli("submit", "job.yaml", "--no-wait", "--priority", 7, "--runtime-env-json", more)
    assert (answer.exit_code, answer.stdout) == (0, "small-1\n")
    (request,) = sent.sent
    assert request["entrypoint"] == "rayplane run job.yaml --priority 7"
    assert request["metadata"] == {
        "rayplane.job": "small",
        "rayplane.layout": "dp=2 micro_batch=2",
        "rayplane.version": rayplane.__version__,
    }
    environment = request["runtime_env"]
    assert environment["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "660", "A": "1"}
    assert environment["excludes"] == [".git/", "/runs/small/", "big"] and environment["pip"] == ["x"]
    assert "train.checkpoint.dir is relative" in answer.stderr


def test_the_output_is_followed_and_the_exit_code_is_the_jobs(cli, job, server):
    server(("PENDING", ""), ("RUNNING", "step 1\n"), OSError("reset"), ("RUNNING", "step 1\nst"), ("FAILED", "step 1\nstep 2\n", 2))
    job()
    answer = cli("submit", "job.yaml", "--json")
    assert answer.exit_code == 2
    assert "step 1\nstep 2\n" in answer.stderr
    assert json.loads(answer.stdout) == {"submission_id": "small-1", "status": "FAILED", "exit_code": 2}


def test_ctrl_c_stops_the_job_and_waits_for_its_end(cli, job, server):
    ctrl_c = ("RUNNING", "step 1\n", None, lambda: signal.raise_signal(signal.SIGINT))
    found = server(ctrl_c, ("RUNNING", "step 1\nsaved\n"), ("STOPPED", "step 1\nsaved\n"))
    job()
    answer = cli("submit", "job.yaml")
    assert (answer.exit_code, answer.stdout) == (0, "step 1\nsaved\n")
    assert found.stopped == ["small-1"]


def test_a_second_ctrl_c_leaves_the_job_to_its_stop(cli, job, server):
    ctrl_c = ("RUNNING", "", None, lambda: signal.raise_signal(signal.SIGINT))
    found = server(ctrl_c, ctrl_c)
    job()
    answer = cli("submit", "job.yaml")
    assert answer.exit_code == 1 and "small-1 is being stopped on the cluster" in answer.stderr
    assert found.stopped == ["small-1"]


def test_one_job_of_a_name_at_a_time():
    ended, other = Submission("small-2", "small", "FAILED"), Submission("small-9", "other", "RUNNING")
    assert free_id("small", []) == "small-1"
    assert free_id("small", [ended, other, Submission("small-x", "", "RUNNING")]) == "small-10"
    with pytest.raises(RayplaneError, match=r"small is pending on this cluster as small-3: stop it .* or give this one another --name"):
        free_id("small", [ended, Submission("small-3", "small", "PENDING")])


def test_the_loser_of_two_submissions_at_once_looks_again_and_is_refused(cli, job, server):
    found = server()
    job()
    rival = details("small-1", "RUNNING")
    submit = found.submit_job
    found.submit_job = lambda **sent: (found.jobs.append(rival), submit(**sent))[1] if not found.jobs else submit(**sent)
    answer = cli("submit", "job.yaml", "--no-wait")
    assert answer.exit_code == 1 and "small is running on this cluster as small-1" in answer.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AuthenticationError("Authentication required: Unauthorized\n\nlong"), NO_TOKEN),
        (AuthenticationError("Authentication failed: Forbidden\n\nlong"), WRONG_TOKEN),
        (ConnectionError("Failed to connect"), "no Ray cluster answers at {address}"),
        (RuntimeError("Version check returned 404. Jobs API is not supported"), "{address}: Version check returned 404"),
    ],
)
def test_what_the_cluster_refuses_is_said_with_its_remedy(cli, job, server, error, said):
    server(refuse=error)
    job()
    answer = cli("submit", "job.yaml")
    assert answer.exit_code == 1 and said.format(address="http://head:8265") in answer.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runtime-env-json", "{"], "--runtime-env-json: no JSON"),
        (["--runtime-env-json", "[]"], "--runtime-env-json: expected an object"),
        (["--runtime-env-json", '{"working_dir": "x"}'], "working_dir is said by --working-dir"),
        (["--working-dir", "nothing"], "--working-dir nothing: no such folder"),
        (["--working-dir", "else"], "job.yaml does not lie in --working-dir else"),
    ],
)
def test_what_cannot_be_sent_is_refused(cli, job, server, tmp_path, words, said):
    server()
    job()
    (tmp_path / "else").mkdir()
    answer = cli("submit", "job.yaml", *words)
    assert answer.exit_code == 1 and said in answer.stderr


def test_a_wrong_job_is_refused_before_anything_is_sent_but_its_files_may_be_elsewhere(cli, job, server, tmp_path):
    sent = server()
    job(**{"steps: 4": "steps: x"})
    answer = cli("submit", "job.yaml", "--no-wait")
    assert answer.exit_code == 2 and "job.yaml:5: train.steps: expected a whole number" in answer.stderr and not sent.sent
    job(**{f"[{tmp_path}/data.txt]": "[/shared/corpus.jsonl]", "runs/small": "/shared/runs/small"})
    answer = cli("submit", "job.yaml", "--no-wait")
    assert answer.exit_code == 0 and "relative" not in answer.stderr
    assert sent.sent[0]["runtime_env"]["excludes"] == [".git/"]


def test_without_an_address_it_is_asked_for(cli, job, server, monkeypatch):
    server()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    job()
    assert "on which cluster?" in cli("submit", "job.yaml").stderr
