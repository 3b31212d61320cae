"""A node is lost for good: the job goes on with the devices that are left, and its losses are those of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dummies import PYTHONPATH
from training_job import Run

HERE = Path(__file__).parent


@pytest.mark.timeout(170)
def test_three_replicas_go_on_as_two_when_a_node_is_removed(tmp_path):
    (tmp_path / "three").mkdir()
    (tmp_path / "one").mkdir()
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, str(HERE / "elastic.py"), str(tmp_path / "three")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=160)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    with Run(tmp_path / "one", "--runtime", "local", steps=160, every=50, layout="{micro_batch: 2}") as run:
        assert run.end() == 0, run.said()
    final, alone = told["final"], run.losses()
    print(f"next step after {told['next_step_s']:.2f} s, {told['lost_steps']} steps done again")
    assert (final["state"], final["steps"], final["restarts"]) == ("finished", 160, 1), told["said"]
    assert (final["layout"]["dp"], final["layout"]["zero"]) == (2, 1), told["said"]
    assert told["reason"].startswith("its node ") and "restarting from step" in told["said"] and "under dp2 zero1" in told["said"]
    assert told["lost_steps"] <= 10
    for step, losses in told["losses"].items():
        assert losses == pytest.approx([*alone[int(step)]] * len(losses), rel=1e-5), step
