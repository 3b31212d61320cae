"""`rayplane run` of a job that serves on a Ray cluster: what is killed changes no text, and nothing is left."""

import os
import signal

import pytest
import ray
from dummies import eventually, parent, runs
from ray.util.placement_group import placement_group_table
from serving_job import Service, play

PROMPTS = [f"stream {i}: " for i in range(8)]
TOKENS = 150


@pytest.fixture(scope="module")
def on_cluster(cluster):
    """The environment of a driver that joins the tests' cluster."""
    return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}


def living_groups():
    return [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]


def test_killed_rank_and_killed_actor_break_no_stream(tmp_path, on_cluster):
    with Service(tmp_path, environment=on_cluster) as service:
        service.until_live(2)
        assert sorted(living_groups()) == [f"rayplane-{service.name}/replica-{i}" for i in range(2)]
        assert ray.available_resources().get("CPU", 0) == 0  # a replica has two of the four cores, the ingress none
        undisturbed = play(service.url, PROMPTS, TOKENS).texts
        rank = service.ranks()["replica-0/0"]
        assert play(service.url, PROMPTS, TOKENS, len(PROMPTS), lambda: os.kill(rank, signal.SIGKILL)).texts == undisturbed
        assert eventually(lambda: service.status()["restarts"] == 1, 10)
        service.until_live(2)
        actor = parent(service.ranks()["replica-1/0"])
        assert play(service.url, PROMPTS, TOKENS, len(PROMPTS), lambda: os.kill(actor, signal.SIGKILL)).texts == undisturbed
        assert eventually(lambda: service.status()["restarts"] == 2, 20), service.said()
        service.until_live(2)
        left = list(service.ranks().values())
        service.driver.send_signal(signal.SIGTERM)
        assert service.end() == 0, service.said()
    assert "replica 0: rank 0 was killed by SIGKILL" in service.said()
    assert "replica 1: rank 0: its stage actor on " in service.said()
    assert service.result()["state"] == "drained"
    assert len(left) == 3 and not any(map(runs, left))
    assert eventually(lambda: living_groups() == [], 10)
    assert eventually(lambda: ray.available_resources().get("CPU", 0) == 4, 10)
