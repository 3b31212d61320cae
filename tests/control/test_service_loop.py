"""A service's controller on groups in memory: what it starts, tells, kills and writes."""

import json

import pytest
from fake_service import World

from rayplane.control import autoscale, ingresses, replicas, service_loop
from rayplane.errors import PlacementError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits of seconds pass in hundredths."""
    monkeypatch.setattr(service_loop, "LOOK_S", 0.02)
    monkeypatch.setattr(service_loop, "POLL_S", 0.01)
    monkeypatch.setattr(service_loop, "ROOM_S", 0.5)
    monkeypatch.setattr(replicas, "LOST_S", 0.2)
    for name in ("QUEUED_S", "LATE_S", "SETTLE_S"):
        monkeypatch.setattr(autoscale, name, 0.1)


def test_serves_until_it_is_stopped_and_finishes_what_runs(tmp_path):
    with World(tmp_path, replicas=2, least=2) as world:
        world.until(lambda: world.phases() == {0: "serving", 1: "serving"})
        world.until(lambda: world.status.state == "serving" and world.status.urls == ("http://127.0.0.1:80",))
        assert world.member("replica-1").launch.log_dir == str(tmp_path / "logs/replica-1")
        assert [world.member(f"replica-{i}").launch.first_device for i in range(2)] == [0, 1]
        world.stop.request()
        result = world.end()
    assert (result.state, result.exit_code, result.restarts) == ("drained", 0, 0)
    assert world.status.state == "drained" and world.status.replicas == ()
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events == ["Wanted", "ReplicaServing", "ReplicaServing", "StopAsked", "IngressDone"]


def test_second_stop_does_not_wait(tmp_path):
    with World(tmp_path) as world:
        world.drains = False
        world.until(lambda: world.phases() == {0: "serving"})
        world.stop.request()
        world.until(lambda: world.status.state == "stopping")
        world.stop.request()
        assert (world.end().state, world.end().exit_code) == ("stopped", 130)


def test_an_ingress_that_does_not_finish_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(ingresses, "SLACK_S", -4.9)
    with World(tmp_path) as world:
        world.drains = False
        world.until(lambda: world.phases() == {0: "serving"})
        world.stop.request()
        assert world.end().message == "an ingress did not finish within 5 s"


def test_dead_replica_is_replaced_and_ingresses_are_told(tmp_path):
    with World(tmp_path, replicas=2, least=2) as world:
        world.until(lambda: world.phases() == {0: "serving", 1: "serving"} and world.routes() == ["0", "1"])
        world.member("replica-0").say(type="exit", code=-9, signal=9, log="")
        world.until(lambda: world.phases() == {1: "serving", 2: "serving"})
        world.until(lambda: world.routes() == ["1", "2"])
        assert world.member("replica-2").launch.first_device == 0
        assert world.status.restarts == 1 and world.status.message == "replica 0: rank 0 was killed by SIGKILL"
        assert world.member("replica-0").closed


def test_the_cause_is_told_and_not_its_consequence(tmp_path):
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        lost = "ConnectionError: the other rank has closed its connection"
        world.member("replica-0").say(type="failed", kind="rank", message=lost)
        world.member("replica-0").inbox.put({"type": "served", **served(5)})
        world.until(lambda: world.status.message.endswith(lost))


def served(steps):
    return {"rank": 0, "replica": "0", "stage": 0, "steps": steps, "tokens": 7 * steps, "wall_s": 1.0, "phases": {"forward": 1.0}}


def test_what_ranks_say_of_their_time_adds_up(tmp_path):
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        for steps in (2, 3):
            world.member("replica-0").say(type="served", **served(steps))
        world.until(world.member("replica-0").inbox.empty)
        world.stop.request()
        result = world.end()
    assert (result.steps, result.tokens) == (5, 35)
    assert [(s.replica, s.stage, s.compute) for s in result.stages] == [(0, 0, 1.0)]


def test_replica_that_no_ingress_reaches_is_replaced(tmp_path):
    seen = {"state": "live", "reason": "", "running": 0, "waiting": 0, "kv_usage": 0.0}
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.traffic = {"replicas": {"0": {**seen, "state": "lost", "reason": "it was silent for 1.0 s"}}}
        world.until(lambda: 1 in world.phases())
        world.traffic = {"replicas": {"1": seen}}
        world.until(lambda: world.phases() == {1: "serving"})
        assert world.status.message == "replica 0: requests cannot reach it: it was silent for 1.0 s"


def test_replica_that_does_not_come_to_serve_is_tried_again_within_the_budget(tmp_path):
    with World(tmp_path, start_timeout_s=0.1) as world:
        world.silent = True
        result = world.end()
    assert (result.state, result.exit_code) == ("failed", 1)
    assert "did not come to serve within 0.1 s; limits.restarts (2) is spent" in result.message


def test_users_mistake_ends_it_at_once(tmp_path):
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.member("ingress").say(type="failed", kind="user", message="serve.port: 80 is in use")
        assert world.end().message == "rank 0: serve.port: 80 is in use"


def test_silent_ingress_is_started_again_on_its_port(tmp_path, monkeypatch):
    monkeypatch.setattr(ingresses, "SILENT_S", 0.3)
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"} and world.status.urls)
        first, world.traffic = world.member("ingress"), None
        world.until(lambda: world.member("ingress") is not first)
        world.traffic = {}
        assert first.closed and world.member("ingress").launch.config["port"] == 80
        world.until(lambda: world.routes() == ["0"])


def test_no_place_at_the_start_ends_it(tmp_path):
    with World(tmp_path) as world:
        world.refuse = PlacementError("the job needs 4 GPU")
        world.traffic = None
        result = world.end()
    assert result.state == "failed" and "the job needs 4 GPU" in result.message


def test_no_place_later_leaves_those_that_serve_and_is_tried_again(tmp_path):
    with World(tmp_path, replicas=2, least=2) as world:
        world.until(lambda: world.phases() == {0: "serving", 1: "serving"})
        world.refuse = PlacementError("its node is gone")
        world.member("replica-0").say(type="lost", reason="its node is lost")
        world.until(lambda: world.phases() == {1: "serving"} and world.status.wanted == 1)
        world.refuse = None
        world.until(lambda: list(world.phases().values()) == ["serving"] * 2 and world.status.wanted == 2)


def test_more_replicas_where_requests_wait_and_fewer_where_none_come(tmp_path, monkeypatch):
    monkeypatch.setattr(autoscale, "IDLE_S", 0.3)
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.traffic = {"unplaced": 5}
        world.until(lambda: world.phases() == {0: "serving", 1: "serving"})
        world.traffic = {"requests_s": 0.0, "running": 0}
        world.until(lambda: world.phases() == {0: "serving"})
        assert {"type": "drain"} in world.member("replica-1").sent and world.routes() == ["0"]
        assert world.status.restarts == 0
