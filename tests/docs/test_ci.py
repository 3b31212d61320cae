"""`.ci/run` ends with pytest's closing line, which it prints once, and with the exit code of the tests."""

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
PASSED = "===== 812 passed, 3 skipped in 512.33s (0:08:32) ====="
FAILED = "===== 1 failed, 811 passed in 500.10s (0:08:20) ====="


@pytest.mark.parametrize(
    ("said", "code", "last"),
    [
        ([PASSED], 0, PASSED),
        ([FAILED, "make: *** [Makefile:27: test] Error 1"], 2, FAILED),
        (["E501 Line too long", "make: *** [Makefile:31: lint] Error 1"], 2, "pytest did not run: see above"),
    ],
)
def test_the_closing_line_comes_once_and_last(tmp_path, said, code, last):
    for name, lines in (("make", [*(f"echo '{line}'" for line in said), f"exit {code}"]), ("python3", ["exit 0"])):
        (tmp_path / name).write_text("\n".join(["#!/bin/sh", *lines]))
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([RUN], capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False, timeout=30)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1], lines.count(last)) == (code, last, 1)
    assert lines[0] == said[0]
