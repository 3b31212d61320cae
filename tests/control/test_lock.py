"""One controller per folder."""

import os
import subprocess
import sys

import pytest

from rayplane.control.lock import held, locked
from rayplane.errors import RayplaneError

HOLD = """
import sys
from pathlib import Path
from rayplane.control.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_told_who_has_the_folder(tmp_path):
    folder = tmp_path / "runs" / "job"
    with locked(folder), pytest.raises(RayplaneError, match=rf"in use by pid {os.getpid()} on"), locked(folder):
        pass
    with locked(folder):
        assert held(folder)
    assert not held(folder)


def test_the_lock_ends_with_its_process(tmp_path):
    folder = tmp_path / "job"
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RayplaneError, match=f"pid {other.pid}"), locked(folder):
            pass
        other.kill()
        other.wait(10)
        with locked(folder):
            pass


def test_looking_does_not_turn_a_run_away(tmp_path):
    assert not held(tmp_path / "none")
    with locked(tmp_path / "job"):
        assert held(tmp_path / "job")
