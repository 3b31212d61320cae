"""`rayplane run` on a Ray cluster with the real worker: the losses of one process, whatever is killed on the way."""

import os
import signal
from pathlib import Path

import pytest
import ray
from dummies import descendants, eventually, parent, runs
from training_job import Run, ends

GONE_S = 10.0
"""Until the last process of a killed driver has ended; it takes 1 s where the machine has nothing else to do."""


@pytest.fixture(scope="module")
def on_cluster(cluster):
    """The environment of a driver that joins the tests' cluster."""
    return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}


def family_of(driver):
    """Its descendants without the guardian, which outlives them by a moment to be sure."""
    return {pid for pid in descendants(driver) if "rayplane.runtime.guardian" not in Path(f"/proc/{pid}/cmdline").read_text()}


def same(run, undisturbed):
    """Whether every step was done, and had the loss of the undisturbed run each time."""
    (losses, _), done = undisturbed, run.losses()
    assert sorted(done) == sorted(losses)
    return all(loss == pytest.approx(losses[step], rel=1e-5) for step, all_of in done.items() for loss in all_of)


def test_losses_of_two_replicas_equal_those_of_one_process(tmp_path, on_cluster, undisturbed):
    with Run(tmp_path, environment=on_cluster, layout="{dp: 2, tp: 2, micro_batch: 2}") as run:
        assert run.end() == 0, run.said()
    final = run.result()
    assert same(run, undisturbed)
    assert (final["state"], final["steps"], final["restarts"]) == ("finished", 40, 0)
    assert final["final_loss"] == pytest.approx(undisturbed[1]["final_loss"], rel=1e-5)


def test_killed_rank_and_killed_actor_cost_two_stages_a_restart_each_and_no_loss(tmp_path, on_cluster, undisturbed):
    with Run(tmp_path, environment=on_cluster) as run:
        run.until("StepDone", 7)
        first = run.ranks()
        os.kill(first[1], signal.SIGKILL)
        run.until("Started", 2)
        run.until("StepDone", len([e for e in run.events() if e["event"] == "StepDone"]) + 3)
        second = run.ranks()
        assert ends([first[1]], 0) and second[1] != first[1]
        actor = parent(second[0])
        os.kill(actor, signal.SIGKILL)
        run.until("Started", 3)
        assert ends([actor, second[0]], 0)
        restarts = run.metrics()["rayplane_restarts_total"]
        assert run.end() == 0, run.said()
    assert same(run, undisturbed)
    assert run.result()["restarts"] == 2
    assert "rank 1 was killed by SIGKILL" in run.said()
    assert "rank 0: its stage actor on " in run.said() and "is lost: The actor is dead because" in run.said()
    assert sum(restarts) == 2
    assert run.said().count("restarting from step") == 2 and "restarting from step 0" not in run.said()


def test_sigterm_saves_and_gives_the_places_back(tmp_path, on_cluster):
    with Run(tmp_path, environment=on_cluster, every=1000, steps=10000) as run:
        run.until("StepDone", 5)
        ranks = list(run.ranks().values())
        values = run.metrics()
        run.driver.send_signal(signal.SIGTERM)
        assert run.end(30) == 0, run.said()
        assert ends(ranks, 0) and len(ranks) == 2
    final = run.result()
    assert (final["state"], final["checkpoint"]) == ("drained", f"{tmp_path}/runs/job/step-{final['steps']:08d}")
    assert (values["rayplane_job_state state=running"], values["rayplane_job_state state=starting"]) == ([1], [0])
    assert len(values["rayplane_step_predicted_seconds"]) == 1
    for rank in range(2):
        (measured_s,) = values[f"rayplane_step_measured_seconds rank={rank} replica=0 stage={rank}"]
        assert 0 < measured_s < 10
    assert not [p for p in ray.util.placement_group_table().values() if p["state"] != "REMOVED"]


def test_sigterm_ends_a_wait_for_a_busy_cluster(tmp_path, on_cluster):
    other = ray.util.placement_group([{"CPU": 3}], name="other")
    assert other.wait(10)
    try:
        with Run(tmp_path, environment=on_cluster) as run:
            run.until("Submitted")
            run.driver.send_signal(signal.SIGTERM)
            assert run.end(5) == 0, run.said()
        assert run.result()["state"] == "drained"
        assert [e["event"] for e in run.events()] == ["Submitted", "StopRequested", "KillDone"]
    finally:
        ray.util.remove_placement_group(other)


def test_killed_driver_of_an_embedded_ray_leaves_nothing_and_another_run_goes_on(tmp_path, undisturbed):
    with Run(tmp_path) as run:
        run.until("StepDone", 12)
        family = family_of(run.driver.pid)
        assert set(run.ranks().values()) <= family and len(family) > 4
        run.driver.kill()
        again = Run(tmp_path, "--runtime", "local")
        assert ends(list(family), GONE_S), [pid for pid in family if runs(pid)]
    with again as run:
        assert run.end() == 0, run.said()
    assert "steps are done" in run.said()
    assert same(run, undisturbed)


def test_sigterm_while_ray_starts_ends_all_of_it(tmp_path):
    with Run(tmp_path) as run:
        assert eventually(lambda: len(descendants(run.driver.pid)) >= 2, 30.0)
        family = list(family_of(run.driver.pid))
        run.driver.send_signal(signal.SIGTERM)
        assert run.end(30) == 0, run.said()
    assert ends(family, GONE_S)
    assert (run.result()["state"], run.result()["steps"]) == ("drained", 0)


def test_a_driver_killed_while_ray_starts_leaves_nothing(tmp_path):
    """The guardian is the first of its children, Ray's first server the second: no list of Ray's processes could be complete yet."""
    with Run(tmp_path) as run:
        assert eventually(lambda: len(descendants(run.driver.pid)) >= 2, 30.0)
        family = list(family_of(run.driver.pid))
        run.driver.kill()
    assert ends(family, GONE_S)
