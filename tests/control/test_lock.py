"""One controller per folder."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_a_folder_with_two_paths_has_one_lock(tmp_path):
    folder, link = tmp_path / "job", tmp_path / "elsewhere" / "link"
    folder.mkdir()
    link.parent.mkdir()
    link.symlink_to(folder)
    with locked(folder), pytest.raises(RayplaneError, match="in use by pid"), locked(link):
        pass


def test_the_folder_itself_can_be_looked_at_from_inside(tmp_path, monkeypatch):
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    with locked(tmp_path / "job"):
        assert held(Path())


def test_a_place_that_takes_no_lock_names_the_field(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RayplaneError, match=r"train\.checkpoint\.dir: cannot write beside it"), locked(tmp_path / "file" / "job"):
        pass
