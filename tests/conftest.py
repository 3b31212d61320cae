"""What tests of several folders need. It imports no torch and no Ray, which some folders do without."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# CI draws the same cases every time: what fails there fails for everybody. HYPOTHESIS_PROFILE=default looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

AGAINST_THE_CLOCK = ("api", "chaos", "cli", "ray", "runtime", "test_bubble", "test_rebalance", "test_recovery", "test_memory_restart")
"""Folders and files whose tests have real processes, which a busy machine now and then starves beyond any sensible deadline."""


def pytest_collection_modifyitems(items):
    """What fails against the clock fails once more before it counts; the report says how many were rerun."""
    for item in items:
        if {item.path.parent.name, item.path.stem} & set(AGAINST_THE_CLOCK):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


JOB = """\
name: small
model: {preset: tiny-llama}
train:
  data: {path: [DATA], tokenizer: bytes, seq_len: 32}
  steps: 4
  global_batch: 4
  checkpoint: {dir: runs/small, every: 2}
layout: {dp: 2, micro_batch: 2}
limits: {restarts: 1}
"""


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Runs the command in an empty folder; the result has exit_code, stdout and stderr."""
    from typer.testing import CliRunner

    from rayplane.cli.app import app

    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *args: runner.invoke(app, [str(a) for a in args])


@pytest.fixture
def job(tmp_path):
    """Writes a job file, some of its text replaced."""
    (tmp_path / "data.txt").write_text("hello " * 1000)

    def write(name="job.yaml", **changes):
        text = JOB.replace("DATA", str(tmp_path / "data.txt"))
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        path = Path(name)
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """(losses by step, final object) of the training job on one rank, to which nothing happens."""
    from training_job import Run

    with Run(tmp_path_factory.mktemp("serial"), "--runtime", "local", layout="{micro_batch: 2}") as run:
        assert run.end() == 0, run.said()
        return {step: loss for step, (loss,) in run.losses().items()}, run.result()
