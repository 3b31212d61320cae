"""`rayplane calibrate` on a Ray cluster: its ranks are placed there as for training, in groups of every shape."""

import os
import subprocess
import sys

import ray

from rayplane.spec.profile import read_profile

JOB = """
name: small
model: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, mlp: 128, vocab: 300}
train:
  data: {path: ["python://stdlib"], seq_len: 32}
  steps: 2
  global_batch: 8
  checkpoint: {dir: runs/small}
"""


def test_a_cluster_is_measured_through_its_actors(tmp_path, cluster):
    (tmp_path / "job.yaml").write_text(JOB)
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    command = [sys.executable, "-m", "rayplane", "calibrate", "job.yaml", "--quick", "--out", "profile.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    profile = read_profile(tmp_path / "profile.yaml")
    assert (profile.hardware.nodes, profile.hardware.devices) == (1, 4)
    assert {(row.size, row.per_island) for row in profile.collectives} == {(2, 2), (4, 4)}
    assert {row.inside for row in profile.messages} == {True}
    assert all(row.busy == 4 for row in profile.products)
    assert not [p for p in ray.util.placement_group_table().values() if p["state"] not in ("REMOVED",)]
