"""`ray job submit -- rayplane run` on a running cluster with its own ports and token."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from dummies import descendants, eventually, runs
from training_job import Folder

from rayplane.runtime.guardian import MARK, end, guarded

BIN = Path(sys.executable).parent
HEAD_TIMEOUT_S = 60.0


def free_ports(number: int) -> list[int]:
    """Ports that nobody has now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    numbers = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return numbers


@pytest.fixture(scope="module")
def head() -> Iterator[dict[str, str]]:
    """The environment of a client of a Ray head that lives as long as these tests."""
    folder = Path(tempfile.mkdtemp(prefix="head-"))
    token = folder / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32))
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    options = [f"--{name}={value}" for name, value in {**ports, "num-cpus": 2, "temp-dir": folder}.items()]
    command = [BIN / "ray", "start", "--head", "--block", "--disable-usage-stats", *options]
    with guarded() as mark, (folder / "out").open("w") as out:
        marked = {**environment, MARK: mark}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=marked, start_new_session=True)
    try:
        assert eventually(lambda: "Ray runtime started" in (folder / "out").read_text(), HEAD_TIMEOUT_S), (folder / "out").read_text()
        yield {**environment, "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports['dashboard-port']}"}
    finally:
        family = [*descendants(process.pid), process.pid]
        end(mark)
        process.wait(30)
        assert eventually(lambda: not any(map(runs, family)), 10.0)
        shutil.rmtree(folder)


@pytest.fixture
def job(tmp_path: Path) -> Folder:
    """A job's folder; its checkpoints are kept outside of what is uploaded."""
    (tmp_path / "upload").mkdir()
    return Folder(tmp_path / "upload", runs=tmp_path / "runs")


def ray_job(head: dict[str, str], *words: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A `ray job` command."""
    command = [str(BIN / "ray"), "job", *words]
    return subprocess.run(command, capture_output=True, text=True, env=head, cwd=directory, timeout=120)


SUBMIT = ("submit", "--working-dir", ".")
RUN = ("--", "rayplane", "run", "job.yaml")


def test_submitted_job_trains_and_ends_with_its_result_while_a_wrong_one_fails(
    head: dict[str, str], job: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wrong = Folder(tmp_path_factory.mktemp("wrong"))
    wrong.write(lr="fast")
    job.write()
    with ThreadPoolExecutor() as at_once:
        refused = at_once.submit(ray_job, head, *SUBMIT, *RUN, directory=wrong.path)
        answer = ray_job(head, *SUBMIT, *RUN, "--json", directory=job.path)
    assert refused.result().returncode == 1
    assert "job.yaml:7: train.optimizer.lr" in refused.result().stdout
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "succeeded" in answer.stdout
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("{")]
    final = json.loads(line)
    assert (final["state"], final["steps"]) == ("finished", 40)
    assert Path(final["checkpoint"], "manifest.json").is_file()


def test_stopped_job_saves_and_leaves_nothing(head: dict[str, str], job: Folder) -> None:
    job.write(steps=100_000, every=100_000)
    name = f"stopped-{secrets.token_hex(4)}"
    assert ray_job(head, *SUBMIT, "--no-wait", "--submission-id", name, *RUN, directory=job.path).returncode == 0
    assert eventually(lambda: sum(e["event"] == "StepDone" for e in job.events()) >= 3, 60.0)
    ranks = job.ranks()
    assert len(ranks) == 2
    assert ray_job(head, "stop", name).returncode == 0
    assert "was stopped" in ray_job(head, "status", name).stdout
    assert eventually(lambda: not any(map(runs, ranks.values())), 1.0)
    [saved] = [e for e in job.events() if e["event"] == "Saved"]
    assert Path(saved["checkpoint"]["path"], "manifest.json").is_file()
    assert json.loads((job.runs / "job/state.json").read_text())["state"] == "drained"


def submit(head: dict[str, str], job: Folder, *words: str) -> subprocess.Popen[str]:
    """A `rayplane submit` command."""
    command = [sys.executable, "-m", "rayplane", "submit", "job.yaml", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=head, cwd=job.path)


def test_rayplane_submit_follows_the_job_and_ctrl_c_saves_it(head: dict[str, str], job: Folder) -> None:
    job.write(steps=100_000, every=100_000)
    process = submit(head, job)
    try:
        assert eventually(lambda: sum(e["event"] == "StepDone" for e in job.events()) >= 3, 90.0)
        second = submit(head, job, "--no-wait")
        assert "is running on this cluster as" in second.communicate(timeout=60)[1] and second.returncode == 1
        ranks = job.ranks()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(30)
    assert process.returncode == 0, err
    assert "training" in out and "saved step" in out, out
    assert len(ranks) == 2 and not any(map(runs, ranks.values()))
    assert json.loads((job.runs / "job/state.json").read_text())["state"] == "drained"


def test_rayplane_submit_ends_with_the_jobs_exit_code_and_knows_a_wrong_token(
    head: dict[str, str], job: Folder, tmp_path: Path
) -> None:
    job.write()
    (job.path / "tokens.npy").unlink()
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32))
    strangers = [{**head, "RAY_AUTH_TOKEN_PATH": str(wrong)}, {k: v for k, v in head.items() if not k.startswith("RAY_AUTH")}]
    processes = [submit(each, job) for each in (head, *strangers)]
    (out, _), (_, refused), (_, asked) = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [2, 1, 1]
    assert "train.data.path[0]: no such file" in out
    assert "refuses the token" in refused and "asks for a token" in asked


def test_cluster_answers_nobody_without_its_token(head: dict[str, str]) -> None:
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{head['RAY_API_SERVER_ADDRESS']}/api/jobs/", timeout=10)
    assert refused.value.code == 401
