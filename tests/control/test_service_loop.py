"""A service's controller on groups in memory: what it starts, tells, kills and writes."""

import json
import time

import pytest
from fake_service import World

from rayplane.control import autoscale, ingresses, relayout, replicas, service_loop, steering
from rayplane.control.relayout import Offer
from rayplane.control.service_state import LayoutWanted
from rayplane.control.way import Way
from rayplane.errors import PlacementError, SpecError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits of seconds pass in hundredths."""
    monkeypatch.setattr(service_loop, "LOOK_S", 0.02)
    monkeypatch.setattr(service_loop, "POLL_S", 0.01)
    monkeypatch.setattr(steering, "ROOM_S", 0.5)
    monkeypatch.setattr(replicas, "LOST_S", 0.2)
    for name in ("QUEUED_S", "LATE_S", "SETTLE_S"):
        monkeypatch.setattr(autoscale, name, 0.1)


def test_serves_until_it_is_stopped_and_finishes_what_runs(tmp_path):
    with World(tmp_path, replicas=2, least=2) as world:
        world.until(lambda: world.phases() == {0: "serving", 1: "serving"})
        world.until(lambda: world.status.state == "serving" and world.status.urls == ("http://127.0.0.1:80",))
        assert world.member("replica-1").launch.log_dir == str(tmp_path / "logs/replica-1")
        assert [world.member(f"replica-{i}").launch.devices for i in range(2)] == [(0,), (1,)]
        world.stop.request()
        result = world.end()
    assert (result.state, result.exit_code, result.restarts) == ("drained", 0, 0)
    assert world.status.state == "drained" and world.status.replicas == ()
    events = [json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events == ["Wanted", "ReplicaServing", "ReplicaServing", "StopAsked", "IngressDone"]


def test_what_replicas_have_done_counts_to_the_last(tmp_path):
    report = {
        "rank": 0,
        "replica": "0",
        "stage": 0,
        "steps": 3,
        "tokens": 70,
        "wall_s": 1.0,
        "phases": {"forward": 1.0},
        "comm_bytes": {},
    }
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        replica = world.member("replica-0")
        plain = replica.send

        def send(message):
            if message["type"] == "drain":
                replica.say(type="served", **report)
            plain(message)

        replica.send = send
        world.stop.request()
        assert (world.end().steps, world.end().tokens) == (3, 70)


def test_a_replica_without_last_words_is_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(service_loop, "LAST_WORDS_S", 0.2)
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.member("replica-0").send = lambda message: None
        world.stop.request()
        assert world.end().state == "drained"


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
        assert world.member("replica-2").launch.devices == (0,)
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
    world = World(tmp_path)
    world.refuse, world.traffic = PlacementError("the job needs 4 GPU"), None
    with world:
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


TWO = Way(cores=2)


def layouts(world):
    """Of those that serve."""
    return [r.layout for r in world.status.replicas if r.phase == "serving"]


def events(path, name):
    return [line for line in map(json.loads, (path / "events.jsonl").read_text().splitlines()) if line["event"] == name]


def told(world):
    """Where requests might go, each time that was told."""
    return [m["replicas"] for m in world.member("ingress").sent if m["type"] == "replicas"]


def test_replicas_of_another_layout_start_on_free_devices_before_the_old_one_leaves(tmp_path):
    with World(tmp_path, berths=3) as world:
        world.until(lambda: world.phases() == {0: "serving"} and world.routes() == ["0"])
        world.controller.post(LayoutWanted(TWO, 1))
        world.until(lambda: world.phases() == {1: "serving"} and not world.status.moving and world.routes() == ["1"])
        assert layouts(world) == ["2 cores"] and world.status.layout == "2 cores"
        assert world.member("replica-1").launch.devices == (1,) and world.member("replica-1").launch.config["threads"] == 2
        assert (world.status.moves, world.status.moves_given_up, world.status.wanted) == (1, 0, 1)
        assert {"type": "drain"} in world.member("replica-0").sent and all(told(world))
    assert events(tmp_path, "LayoutWanted")[0]["way"]["cores"] == 2


def test_where_devices_are_short_one_leaves_for_its_successor_while_another_serves(tmp_path):
    with World(tmp_path, replicas=2, least=2, berths=3, most=3) as world:
        world.until(lambda: world.phases() == {0: "serving", 1: "serving"} and world.routes() == ["0", "1"])
        world.controller.post(LayoutWanted(TWO, 1))
        world.until(lambda: layouts(world) == ["2 cores"] and not world.status.moving and world.routes() == ["2"])
        assert [[r["id"] for r in replicas] for replicas in told(world)][-3:] == [["0"], ["0", "2"], ["2"]]
        assert world.member("replica-2").launch.devices == (1,) and world.status.moves == 1


def test_a_lone_replica_without_a_device_to_spare_stays(tmp_path):
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.controller.post(LayoutWanted(TWO, 1))
        world.until(lambda: world.status.moves_given_up == 1)
        assert world.phases() == {0: "serving"} and not world.status.moving and world.status.layout == "1 device"
        assert "did not move to 2 cores: no device is free" in world.status.message
        assert [group.name for group in world.groups] == ["ingress", "replica-0"]


def test_a_lone_replica_moves_where_requests_may_wait(tmp_path):
    with World(tmp_path, hold=True) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.controller.post(LayoutWanted(TWO, 1))
        world.until(lambda: world.phases() == {1: "serving"} and world.status.moves == 1)
        assert world.member("replica-0").closed


def test_a_layout_that_does_not_come_up_is_given_up_and_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(relayout, "PRESSED_S", 0.1)
    monkeypatch.setattr(relayout, "ASK_S", 0.05)
    with World(tmp_path, berths=3, most=1, ask=lambda load, way: Offer(TWO, 1, None)) as world:
        world.sick = lambda launch: launch.cores == 2
        world.until(lambda: world.phases() == {0: "serving"})
        world.traffic = {"ttft_p99_s": 9.0}
        world.until(lambda: world.status.moves_given_up == 1)
        world.until(lambda: world.phases() == {0: "serving"} and not world.status.moving)
        time.sleep(1.0)  # twenty times as long as it would take
        assert len(events(tmp_path, "LayoutWanted")) == 1 and world.status.layout == "1 device"
        assert events(tmp_path, "MoveEnded")[0]["reason"] == "replica 1: rank 0: no such kernel"


def test_moves_by_itself_where_the_planner_knows_what_holds_the_load(tmp_path, monkeypatch):
    monkeypatch.setattr(relayout, "PRESSED_S", 0.1)
    asked = []

    def ask(load, way):
        asked.append((load.ttft_p99_s, str(way)))
        return Offer(TWO, 1, None)

    with World(tmp_path, berths=3, most=1, ask=ask) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        world.traffic = {"ttft_p99_s": 9.0}
        world.until(lambda: world.status.moves == 1 and layouts(world) == ["2 cores"])
        assert asked == [(9.0, "1 device")]


def test_a_wish_that_the_job_does_not_allow_is_answered(tmp_path):
    with World(tmp_path) as world:
        world.until(lambda: world.phases() == {0: "serving"})
        allowed = world.task.ability
        object.__setattr__(world.task, "ability", lambda way: refuse() if way == TWO else allowed(way))
        world.controller.post(LayoutWanted(TWO, 1))
        world.until(lambda: "layout: the job fixes it" in world.status.message)
        assert world.phases() == {0: "serving"} and not events(tmp_path, "LayoutWanted")


def refuse():
    raise SpecError("layout: the job fixes it")
