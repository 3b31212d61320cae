"""Errands on every machine, as when a failed job's copies in memory are removed."""

from functools import partial
from pathlib import Path

from rayplane.runtime.ray import everywhere
from rayplane.train.ram_folder import RamFolder, remove_folder


def test_an_errand_is_run_on_every_node_and_one_that_fails_stops_nobody(cluster, tmp_path):
    ram = RamFolder.open(tmp_path / "rayplane-a", tmp_path / ".job.lock")
    everywhere(partial(Path.rmdir, tmp_path / "not there"))
    everywhere(partial(remove_folder, ram.path))
    assert not ram.path.exists()
    ram.close()
