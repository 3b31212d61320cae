import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from dummies import PYTHONPATH, all_started, collect, eventually, launch, ranks_of, runs
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from rayplane.errors import PlacementError
from rayplane.runtime.group import Launch
from rayplane.runtime.patience import GaveUp
from rayplane.runtime.ray import Exporters, RayGroup, discover
from rayplane.runtime.ray.places import TELL_AFTER_S
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot

TWO_NODES = """
import ray
from dataclasses import replace
from ray.cluster_utils import Cluster
from dummies import collect, ranks_of
from rayplane.runtime.ray import RayGroup, connect, discover
from rayplane.spec.plan import Placement
from test_ray_group import two_stages
cluster = Cluster()
nodes = [cluster.add_node(num_cpus=1, num_gpus=2, labels={"rayplane.io/island": "rack-7"}) for _ in range(2)]
connect(cluster.address)
spec = discover("h200")
named = {node.name.rpartition("/")[2]: node.name for node in spec.nodes}
print("named by the beginning of their ids:", sorted(named) == sorted(node.node_id[:6] for node in nodes))
print(len(spec.nodes), "nodes of", spec.num_devices, spec.nodes[0].kind, "in island", *spec.islands)
start = two_stages()
slots = [replace(slot, node=named[node.node_id[:6]]) for slot, node in zip(start.placement.slots, nodes)]
group = RayGroup()
group.start(replace(start, placement=Placement(tuple(slots)), device="cuda"))
came = collect(group, lambda seen: len(ranks_of(seen, "started")) == 4)
seen = {m.rank: m.message["gpu"] for m in came if m.message["type"] == "started"}
print("each rank sees its GPU:", *(seen[rank] for rank in range(4)))
if [s.site.node_id for s in group._stages] == [n.node_id for n in nodes]:
    print("each stage on its own node")
cluster.remove_node(nodes[1], allow_graceful=False)
came = collect(group, lambda seen: len(ranks_of(seen, "lost")) == 2, 30)
print("lost node ends ranks", sorted(ranks_of(came, "lost")))
[reason] = {m.message["reason"] for m in came if m.message["type"] == "lost"}
print("and is named:", reason.startswith(f"its node {slots[1].node} ("), reason)
group.close()
ray.shutdown()
cluster.shutdown()
"""


def two_stages(does: str = "step", node: str = "") -> Launch:
    slots = tuple(Slot(0, stage, 0, (2 * stage, 2 * stage + 1), node, node) for stage in range(2))
    return Launch("dummy", Layout(pp=2, tp=2), Placement(slots), "dummy_rank", {"does": does})


def test_ranks_of_two_stages_meet_and_report_until_drained(group: RayGroup) -> None:
    group.start(two_stages())
    came = collect(group, lambda seen: len(ranks_of(seen, "step")) == 4)
    group.send({"type": "drain"})
    came += collect(group, lambda seen: len(ranks_of(seen, "exit")) == 4)
    joins = [m.message["join"] for m in came if m.message["type"] == "started"]
    assert sorted(j["rank"] for j in joins) == [0, 1, 2, 3]
    assert len({(j["host"], j["port"], j["address"]) for j in joins}) == 1
    assert ranks_of(came, "done") == {0, 1, 2, 3}
    steps = [m.message["step"] for m in came if m.rank == 2 and m.message["type"] == "step"]
    assert steps == list(range(1, len(steps) + 1))


def test_killed_rank_is_reported_and_kill_leaves_nothing(group: RayGroup) -> None:
    group.start(two_stages())
    pids = all_started(group)
    killed_s = time.monotonic()
    os.kill(pids[2], signal.SIGKILL)
    came = collect(group, lambda seen: bool(ranks_of(seen, "exit")))
    assert time.monotonic() - killed_s < 0.5
    assert [(m.rank, m.message["signal"]) for m in came if m.message["type"] == "exit"] == [(2, 9)]
    group.kill()
    assert not [pid for pid in pids.values() if runs(pid)]


def test_killed_actor_is_the_end_of_its_ranks_only_and_places_are_kept(group: RayGroup) -> None:
    group.start(two_stages())
    pids = all_started(group)
    places = set(placement_group_table())
    killed_s = time.monotonic()
    os.kill(group.actor_pids[1], signal.SIGKILL)
    came = collect(group, lambda seen: len(ranks_of(seen, "lost")) == 2)
    assert time.monotonic() - killed_s < 3.0
    assert ranks_of(came, "lost") == {2, 3}
    reasons = {m.message["reason"] for m in came if m.message["type"] == "lost"}
    assert len(reasons) == 1 and "is lost: The actor is dead because its worker process has died" in reasons.pop()
    assert eventually(lambda: not runs(pids[2]) and not runs(pids[3]), 1.0)
    group.start(two_stages())
    assert not set(pids.values()) & set(all_started(group).values())
    assert set(placement_group_table()) == places


def test_stopped_actor_does_not_hold_up_a_kill(group: RayGroup) -> None:
    group.start(two_stages())
    pids = all_started(group)
    os.kill(group.actor_pids[0], signal.SIGSTOP)
    started_s = time.monotonic()
    group.kill()
    assert time.monotonic() - started_s < 10.0
    assert not [pid for pid in pids.values() if runs(pid)]


def test_layout_larger_than_the_cluster_is_refused_with_the_difference(group: RayGroup) -> None:
    with pytest.raises(
        PlacementError, match=r"needs 6 CPU in one island; the largest island has 4 \(node .*: 4\). Add nodes, choose a smaller layout"
    ):
        group.start(launch(ranks=6))


def test_stages_planned_for_a_node_that_left_go_where_there_is_room(cluster: None) -> None:
    told: list[str] = []
    group = RayGroup(wait_s=20.0, on_bound=lambda launch, bound: told.extend(slot.node for slot in bound.placement.slots))
    try:
        group.start(two_stages(node="gone"))
        assert len(all_started(group)) == 4
    finally:
        group.close()
    assert told == [socket.gethostname()] * 2


def test_busy_cluster_is_waited_for(group: RayGroup, caplog: pytest.LogCaptureFixture) -> None:
    other = placement_group([{"CPU": 3}], name="other")
    assert other.wait(10)
    with pytest.raises(
        PlacementError,
        match=r"it needs 2 x 2 CPU, each in one island; the largest free island has 1 .*\(held by other: 3\); gave up after 0.2 s",
    ):
        RayGroup(wait_s=0.2).start(two_stages())
    free = threading.Timer(TELL_AFTER_S + 0.3, remove_placement_group, (other,))
    free.start()
    group.start(two_stages())
    free.join()
    assert len(all_started(group)) == 4
    assert "waiting up to 20 s for other jobs to end" in caplog.text


def test_wait_for_a_busy_cluster_ends_when_told_to(group: RayGroup) -> None:
    other = placement_group([{"CPU": 3}])
    assert other.wait(10)
    asked_s = time.monotonic() + 0.3
    with pytest.raises(GaveUp):
        group.start(two_stages(), lambda: time.monotonic() > asked_s)
    assert time.monotonic() - asked_s < 1.0
    remove_placement_group(other)


def test_discovered_cluster_has_this_node_and_places_can_be_pinned_to_it(group: RayGroup) -> None:
    (node,) = discover().nodes
    assert (node.devices, node.kind, node.name) == (4, "cpu", socket.gethostname())
    group.start(two_stages(node=node.name))
    assert len(all_started(group)) == 4


def test_metrics_of_a_node_are_served(cluster: None) -> None:
    exporters = Exporters("dummy", 0)
    group = RayGroup(exporters)
    try:
        group.start(two_stages())
        collect(group, lambda seen: len(ranks_of(seen, "step")) == 4)
        (target,) = exporters.targets

        def served() -> bool:
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as page:
                text = page.read().decode()
            return all(f'rank="{rank}"' in text for rank in range(4))

        assert eventually(served, 5.0)
    finally:
        group.close()
        exporters.close()
    assert exporters.targets == []


def test_stages_are_pinned_to_nodes_ranks_to_gpus_and_a_lost_node_ends_its_ranks() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([PYTHONPATH, str(Path(__file__).parent)])}
    result = subprocess.run([sys.executable, "-c", TWO_NODES], capture_output=True, text=True, env=environment, timeout=90)
    said = [
        "named by the beginning of their ids: True",
        "2 nodes of 4 h200 in island rack-7",
        "each rank sees its GPU: 0 1 0 1",
        "each stage on its own node",
        "lost node ends ranks [2, 3]",
    ]
    assert [line for line in result.stdout.splitlines() if line in said] == said, result.stdout + result.stderr
    assert "\nand is named: True its node " in result.stdout, result.stdout
