"""Job files and a fake fleet for the command line."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayplane.cli import run as run_module
from rayplane.cli.app import app
from rayplane.cli.fleet import Fleet
from rayplane.plan.catalog import homogeneous

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


class Deaf:
    """An exporter that nobody asks."""

    def set_state(self, name):
        pass

    def set_predicted(self, step_s):
        pass

    def saved(self):
        pass

    def restarted(self):
        pass


@pytest.fixture
def cli(tmp_path, monkeypatch):
    """Runs the command in an empty folder; the result has exit_code, stdout and stderr."""
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


@pytest.fixture
def fleet(monkeypatch):
    """Lets `rayplane run` meet a scripted group on a cluster of two CPU cores."""

    def use(group):
        @contextmanager
        def opened(runtime, job):
            yield Fleet(homogeneous({"here": 2}, "cpu", 2**32, {}), "cpu", group, Deaf(), lambda: ["here:1"])

        monkeypatch.setattr(run_module, "open_fleet", opened)
        return group

    return use
