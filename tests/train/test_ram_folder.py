"""The folder in memory belongs to one job folder, outlives its ranks, and goes when nobody drives the job."""

import fcntl
import shutil

import pytest

from rayplane.errors import RayplaneError
from rayplane.train.ram_folder import RamFolder, memory_folder, remove_folder, remove_orphans


@pytest.fixture
def ram(tmp_path):
    path = tmp_path / "ram"
    path.mkdir()
    return path


def test_a_job_folder_made_anew_has_other_copies(tmp_path, ram):
    job = tmp_path / "runs" / "job"
    first = memory_folder(job, ram)
    assert memory_folder(job, ram) == first and first.parent == ram
    shutil.rmtree(job)
    assert memory_folder(job, ram) != first


def test_ranks_that_share_a_folder_share_a_host(tmp_path, ram):
    lock = tmp_path / ".job.lock"
    here, again, there = (RamFolder.open(ram / name, lock) for name in ("rayplane-a", "rayplane-a", "rayplane-b"))
    assert here.host == again.host != there.host
    assert not here.path.stat().st_mode & 0o077, "what is trained is nobody else's business"
    assert not [p for p in ram.iterdir() if p.name.startswith(".")]


def test_only_copies_that_no_driver_and_no_rank_holds_are_removed(tmp_path, ram):
    locks = {name: tmp_path / f".{name}.lock" for name in ("driven", "ranked", "gone", "forgotten")}
    folders = {name: RamFolder.open(ram / f"rayplane-{name}", lock) for name, lock in locks.items()}
    (ram / "else").mkdir()
    for name in ("driven", "gone", "forgotten"):
        folders[name].close()
    locks["gone"].touch()
    with locks["driven"].open("w") as driver:
        fcntl.flock(driver, fcntl.LOCK_EX)
        remove_orphans(ram)
    assert sorted(p.name for p in ram.iterdir()) == ["else", "rayplane-driven", "rayplane-ranked"]
    remove_folder(ram / "else")
    remove_folder(ram / "rayplane-driven")
    assert sorted(p.name for p in ram.iterdir()) == ["else", "rayplane-ranked"]


def test_a_folder_that_cannot_be_made_names_the_field(tmp_path):
    with pytest.raises(RayplaneError, match=r"train\.checkpoint\.memory_dir: cannot keep copies in .*; name a folder in memory"):
        RamFolder.open(tmp_path / "no" / "rayplane-a", tmp_path / ".job.lock")
