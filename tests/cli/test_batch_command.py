"""`rayplane batch` with real ranks: beside a service that runs, and with one of its own, through kill -9 and SIGTERM."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dummies import eventually, runs
from serving_job import DEFAULTS, JOB, START_S, Service, save_model

LOCAL = ("--runtime", "local")
NUM, TOKENS = 30, 80
LAST = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
PROMPTS = [f"line {i}: " + "abc" * (i % 5) for i in range(NUM)]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One replica."""
    with Service(tmp_path_factory.mktemp("one"), *LOCAL, layout="{dp: 1}") as run:
        run.until_live(1)
        yield run


@pytest.fixture(scope="module")
def undisturbed(service, tmp_path_factory):
    """The texts of all prompts, asked through a service that runs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_prompts(folder)
    done = command(folder, "--url", f"{service.url}/v1")
    out, _ = done.communicate(timeout=120)
    assert done.returncode == 0, said(folder)
    final = json.loads(out.splitlines()[-1])
    assert (final["state"], final["requests"], final["done"], final["failed"], final["skipped"]) == ("done", NUM, NUM, 0, 0)
    assert final["output_tokens"] == NUM * TOKENS and final["prompt_tokens"] > sum(map(len, PROMPTS)) - NUM
    assert final["wall_s"] > 0 and final["output_tokens_s"] == pytest.approx(NUM * TOKENS / final["wall_s"], rel=0.05)
    assert f"{NUM}/{NUM}" in said(folder)
    return texts(folder)


def write_prompts(folder: Path) -> None:
    """Half of them in either form."""
    bodies = [{"prompt": prompt, **LAST} for prompt in PROMPTS]
    lines = [
        {"id": f"p{i}", **body} if i % 2 else {"custom_id": f"p{i}", "method": "POST", "url": "/v1/completions", "body": body}
        for i, body in enumerate(bodies)
    ]
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def command(folder: Path, *options: str) -> subprocess.Popen:
    """`rayplane batch` in a folder."""
    words = [sys.executable, "-m", "rayplane", "batch", "in.jsonl", "-o", "out.jsonl", "--json", *options]
    with (folder / "err").open("a") as err:
        return subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=err, text=True)


def said(folder: Path) -> str:
    return (folder / "err").read_text()


def answers(folder: Path) -> list[dict]:
    """What is there, but a line that is cut off."""
    path = folder / "out.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def texts(folder: Path) -> dict[str, str]:
    """By custom_id, each of which is there once."""
    found = answers(folder)
    by_id = {answer["custom_id"]: answer["response"]["body"]["choices"][0]["text"] for answer in found}
    assert len(by_id) == len(found)
    return by_id


def until(folder: Path, num: int, process: subprocess.Popen) -> None:
    """Wait for so many answers, while the command goes on."""
    assert eventually(lambda: len(answers(folder)) >= num or process.poll() is not None, START_S), said(folder)
    assert process.poll() is None, said(folder)


def ranks_of(name: str) -> list[int]:
    """Process ids of a job's ranks and ingresses."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and runs(int(place.name)):
            words = (place / "cmdline").read_text().split("\0") if (place / "cmdline").exists() else []
            if "rayplane.runtime.child" in words and any(word.startswith(f"{name}/") for word in words):
                found.append(int(place.name))
    return found


def test_killed_and_run_again_every_line_is_answered_once_with_the_same_text(undisturbed, tmp_path):
    name = f"batch-{tmp_path.parent.name}"[:60]
    save_model(tmp_path / "model")
    (tmp_path / "job.yaml").write_text(JOB.format(name=name, model="model", **{**DEFAULTS, "layout": "{dp: 1}"}))
    write_prompts(tmp_path)
    first = command(tmp_path, "--job", "job.yaml", "--concurrency", "2", *LOCAL)
    try:
        until(tmp_path, 3, first)
        assert len(ranks_of(name)) == 2
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=30)
    kept = len(answers(tmp_path))
    assert 3 <= kept < NUM
    with (tmp_path / "out.jsonl").open("a") as out:
        out.write('{"id": "batch_req_0')  # as if it had been killed within a line
    again = command(tmp_path, "--job", "job.yaml", *LOCAL)
    out, _ = again.communicate(timeout=START_S)
    assert again.returncode == 0, said(tmp_path)
    final = json.loads(out.splitlines()[-1])
    assert (final["done"], final["skipped"], final["failed"]) == (NUM - kept, kept, 0)
    assert texts(tmp_path) == undisturbed
    assert eventually(lambda: not ranks_of(name), 10)


def test_stopped_it_finishes_what_runs_and_says_how_to_go_on(service, undisturbed, tmp_path):
    write_prompts(tmp_path)
    first = command(tmp_path, "--url", service.url, "--concurrency", "3")
    until(tmp_path, 3, first)
    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=60)
    final, kept = json.loads(out.splitlines()[-1]), len(answers(tmp_path))
    assert (first.returncode, final["state"], final["done"]) == (130, "stopped", kept) and 3 <= kept < NUM
    assert f"{NUM - kept} of {NUM} requests are left: the same command goes on from there" in said(tmp_path)
    assert re.search(r"stopping: [0-3] requests? that runs? may end within 30 s \(once more to stop at once\)", said(tmp_path))
    again = command(tmp_path, "--url", service.url)
    again.communicate(timeout=60)
    assert again.returncode == 0 and texts(tmp_path) == undisturbed


def test_refused_requests_are_answers_and_make_the_exit_code_1(service, tmp_path):
    lines = [{"prompt": "x", "max_tokens": 2}, {"prompt": "x" * 600}, {"prompt": "y", "ignore_eos": True}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for skipped in (0, len(lines)):
        run = command(tmp_path, "--url", service.url, "--max-tokens", "3", "--temperature", "0")
        final = json.loads(run.communicate(timeout=60)[0].splitlines()[-1])
        assert run.returncode == 1 and final["skipped"] == skipped
    found = {answer["custom_id"]: answer["response"] for answer in answers(tmp_path)}
    assert len(found) == len(answers(tmp_path)) == 3
    assert found["line-2"]["status_code"] == 400 and "600 tokens" in found["line-2"]["body"]["error"]["message"]
    assert [found[f"line-{i}"]["body"]["usage"]["completion_tokens"] for i in (1, 3)] == [2, 3]
    assert "1, with the reason in the answer's place" in said(tmp_path)


def test_mistakes_are_told_before_anything_is_started(cli, tmp_path):
    save_model(tmp_path / "model")
    Path("job.yaml").write_text(JOB.format(name="a", model="model", **DEFAULTS))
    batch = ("batch", "in.jsonl", "-o", "out.jsonl")
    Path("in.jsonl").write_text('{"prompt": "x"}\n{"promt": "x"}\n')
    shown = cli(*batch, "--job", "job.yaml", "--json")
    assert shown.exit_code == 2 and "in.jsonl:2: prompt: is missing, did you mean 'promt'?" in shown.stderr
    assert json.loads(shown.stdout.splitlines()[-1])["exit_code"] == 2
    Path("in.jsonl").write_text('{"prompt": "x"}\n')
    for options, text in (
        ((), "say who is to answer"),
        (("--job", "job.yaml", "--url", "http://a"), "give one of them"),
        (("--job", "job.yaml", "--model", "b"), "job.yaml serves a, not b"),
        (("--job", "job.yaml", "--api-key-file", "k"), "is for --url"),
        (("--url", "http://127.0.0.1:9", "--api-key-file", "k"), "--api-key-file: cannot read k"),
        (("--model", "nowhere"), "no such file or folder: nowhere"),
    ):
        shown = cli(*batch, *options)
        assert shown.exit_code == 2 and text in shown.stderr
    assert not Path("runs").exists() and not Path("out.jsonl").read_text()
