"""A controller that dies without an end is counted by the next one; too many in a row are not followed by another."""

import signal
import subprocess
import sys

import pytest

from rayplane.control.tenure import TENURE_FILE, tenure
from rayplane.errors import RayplaneError
from rayplane.spec.job import LimitsSection, RestartsSection

DIES = """
import os, signal, sys
from pathlib import Path
from rayplane.control.tenure import tenure
from rayplane.spec.job import LimitsSection
with tenure(Path(sys.argv[1]), LimitsSection()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def limits(controller):
    return LimitsSection(restarts=RestartsSection(controller=controller))


def die(folder, times=1):
    for _ in range(times):
        assert subprocess.run([sys.executable, "-c", DIES, folder], timeout=60).returncode == -signal.SIGKILL


def test_deaths_are_counted_until_an_end_in_order(tmp_path):
    die(tmp_path, 2)
    with tenure(tmp_path, limits(2)) as died:
        assert died == 2
    with tenure(tmp_path, limits(0)) as died:
        assert died == 0


def test_too_many_deaths_in_a_row_are_refused_and_name_the_field(tmp_path):
    die(tmp_path, 2)
    for _ in range(2):
        with (
            pytest.raises(RayplaneError, match=r"whose driver died without an end: 2; limits\.restarts\.controller \(1\) is spent"),
            tenure(tmp_path, limits(1)),
        ):
            pytest.fail("it was let in")
    with tenure(tmp_path, limits(2)) as died:
        assert died == 2


def test_a_failure_is_an_end_in_order(tmp_path):
    with pytest.raises(OSError, match="disk"), tenure(tmp_path, limits(0)):
        raise OSError("disk")
    assert not list(tmp_path.iterdir())


def test_a_single_number_does_not_keep_a_job_from_being_run_again(tmp_path):
    die(tmp_path)
    with tenure(tmp_path, LimitsSection(restarts=0)) as died:
        assert died == 1


def test_a_damaged_count_is_one_death(tmp_path):
    (tmp_path / TENURE_FILE).write_text("{")
    with tenure(tmp_path, limits(1)) as died:
        assert died == 1
