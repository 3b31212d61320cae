"""A cluster of four nodes on three islands, in a process of its own, for `test_places`: every function here runs there.

node    GPUs    island    rack
a       4       x         -
b       2       x         r
c       4       y         r
d       1       -         -         and 500 of the resource STAGE, as a and b have
"""

import logging
import os
import threading
import time
from collections import Counter
from dataclasses import replace

import ray
from dummies import PYTHONPATH, collect, eventually, ranks_of
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from rayplane.plan.choice.place import place
from rayplane.runtime.group import Launch
from rayplane.runtime.hardware.machines import ISLAND_LABEL, RACK_LABEL
from rayplane.runtime.patience import GaveUp, Patience, never
from rayplane.runtime.ray import RayGroup, Terms, connect, discover
from rayplane.runtime.ray import places as places_module
from rayplane.runtime.ray.cluster import living_nodes, node_ids, node_names
from rayplane.runtime.ray.places import Ask, reserve, rooms
from rayplane.runtime.ray.queue import waiting
from rayplane.runtime.ray.survey import survey
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

NODES = {
    "a": (4, 250, {ISLAND_LABEL: "x"}),
    "b": (2, 250, {ISLAND_LABEL: "x", RACK_LABEL: "r"}),
    "c": (4, 0, {ISLAND_LABEL: "y", RACK_LABEL: "r"}),
    "d": (1, 500, {}),
}
LETTER = "letter"
"""The label by which tests call a node."""
STORE_BYTES = 80_000_000
WAIT_S = 20.0
running: list[Cluster] = []


def start() -> None:
    os.environ["PYTHONPATH"] = PYTHONPATH
    cluster = Cluster()
    for letter, (gpus, stages, labels) in NODES.items():
        cluster.add_node(
            num_cpus=1,
            num_gpus=gpus,
            resources={"STAGE": stages} if stages else {},
            labels={**labels, LETTER: letter},
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
        )
    connect(cluster.address)
    running.append(cluster)


def stop() -> None:
    ray.shutdown()
    running.pop().shutdown()


def letters() -> dict[str, str]:
    """What tests call each node, by its name here, where all share a host."""
    nodes = living_nodes()
    names = node_names(nodes)
    return {names[node["NodeID"]]: node["Labels"][LETTER] for node in nodes}


def ask(layout: Layout, name: str = "job", resource: str = "GPU", **terms: object) -> Ask:
    return Ask(name, layout, Placement(()), resource, 1, Terms(**terms))


def told(text: str) -> str:
    """A message with the nodes' letters."""
    for name, letter in letters().items():
        text = text.replace(name, letter)
    return text


def settled() -> bool:
    """Whether everything is free again, as Ray tells it."""
    return eventually(lambda: sum(node.devices for node in rooms(ask(Layout()), free=True)) == 11, 10.0)


def place_job(layout: Layout, reach: str = "island") -> tuple[str, list[tuple[int, str, tuple[int, ...]]]]:
    """How far apart its groups are, and (replica, node, ranks) of each stage, as Ray says that they lie."""
    assert settled()
    reserved = reserve(ask(layout, reach=reach), Patience(WAIT_S))
    slots, names = reserved.bound.placement.slots, letters()
    lie = placement_group_table(reserved.group)["bundles_to_node_id"]
    bound = [node_ids()[slot.node] for slot in slots]
    assert [lie[i] for i in range(len(slots))] == bound
    remove_placement_group(reserved.group)
    return reserved.bound.reach, [(slot.replica, names[slot.node], slot.ranks) for slot in slots]


def falls_back(reach: str) -> tuple[str, set[str]]:
    """How far apart a group of six is, and on which nodes, while a GPU of the only island of six is taken."""
    assert settled()
    taken = placement_group([{"GPU": 1}], bundle_label_selector=[{LETTER: "a"}])
    assert taken.wait(WAIT_S)
    assert eventually(lambda: sum(node.devices for node in rooms(ask(Layout()), free=True)) == 10, 10.0)
    reserved = reserve(ask(Layout(tp=6), reach=reach), Patience(WAIT_S))
    names = letters()
    for group in (reserved.group, taken):
        remove_placement_group(group)
    return reserved.bound.reach, {names[slot.node] for slot in reserved.bound.placement.slots}


def refusal(layout: Layout, reach: str = "island") -> tuple[str, float]:
    """What is said of a job that has no place, and how soon."""
    began_s = time.monotonic()
    try:
        reserve(ask(layout, reach=reach), Patience(WAIT_S))
    except places_module.PlacementError as error:
        return told(str(error)), time.monotonic() - began_s
    raise AssertionError("there was room")


def hold(layout: Layout, name: str) -> places_module.Reserved:
    return reserve(ask(layout, name), Patience(WAIT_S))


class Heard(logging.Handler):
    """What is said while waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(told(record.getMessage()))

    def __enter__(self) -> "Heard":
        logging.getLogger("rayplane").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("rayplane").removeHandler(self)


def busy_then_freed() -> tuple[list[str], bool, str]:
    """(what is said, whether it got its place when others ended, what is said to one that gives up)."""
    assert settled()
    holders = [hold(Layout(tp=6), "big"), hold(Layout(tp=4), "small")]
    given_up = ""
    try:
        reserve(ask(Layout(tp=6), "late"), Patience(0.2))
    except places_module.PlacementError as error:
        given_up = told(str(error))
    heard = Heard()
    free = threading.Thread(target=lambda: eventually(lambda: bool(heard.said), WAIT_S) and remove_placement_group(holders[0].group))
    free.start()
    with heard:
        got = reserve(ask(Layout(tp=6), "next"), Patience(WAIT_S))
    free.join()
    remove_placement_group(got.group)
    remove_placement_group(holders[1].group)
    return heard.said, not waiting(), given_up


def line_of_three() -> tuple[list[str], list[str]]:
    """(who was in the line, in order, and who got the places, in order) where they come in another."""
    assert settled()
    holder = hold(Layout(tp=6), "holder")
    got: list[str] = []

    def run(name: str, priority: int) -> None:
        reserved = reserve(ask(Layout(tp=6), name, priority=priority), Patience(60.0))
        got.append(name)
        remove_placement_group(reserved.group)

    threads = []
    for number, (name, priority) in enumerate([("first", 0), ("second", 0), ("urgent", 7)], 1):
        threads.append(threading.Thread(target=run, args=(name, priority)))
        threads[-1].start()
        assert eventually(lambda number=number: len(waiting()) == number, WAIT_S)
    stood = [ticket.job for ticket in waiting()]
    remove_placement_group(holder.group)
    for thread in threads:
        thread.join(60.0)
    return stood, got


def gives_up() -> tuple[bool, bool]:
    """(whether a wait ends when it is told to, whether nothing of it is left)."""
    assert settled()
    holder = hold(Layout(tp=6), "holder")
    end_s = time.monotonic() + 0.5
    try:
        reserve(ask(Layout(tp=6)), Patience(WAIT_S, lambda: time.monotonic() > end_s))
    except GaveUp:
        left = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        return True, [group["name"] for group in left] == ["rayplane-holder"]
    finally:
        remove_placement_group(holder.group)
    return False, False


def a_thousand() -> tuple[int, float, float]:
    """(bundles, seconds to place a stage in each, seconds of which went into deciding)."""
    layout = Layout(dp=125, pp=8)
    wanted = ask(layout, "wide", "STAGE")
    decided_s = time.monotonic()
    assert wanted.bound(rooms(wanted, free=True)) is not None
    began_s = time.monotonic()
    reserved = reserve(wanted, Patience(WAIT_S))
    took_s = time.monotonic() - began_s
    on = Counter(slot.node for slot in reserved.bound.placement.slots)
    assert sum(on.values()) == 1000 and placement_group_table(reserved.group)["state"] == "CREATED"
    remove_placement_group(reserved.group)
    return len(reserved.bound.placement.slots), took_s, began_s - decided_s


def surveyed() -> tuple[dict[str, tuple[str, int, int, dict[str, int]]], list[tuple[str, int, str]]]:
    """(kind, devices, free and held of each node; who waits) while one job holds c and another waits for it."""
    assert settled()
    holder = reserve(ask(Layout(tp=4), "demo"), Patience(WAIT_S))
    used = placement_group([{"GPU": 1}], name="", bundle_label_selector=[{LETTER: "d"}])
    assert used.wait(WAIT_S)
    stop_waiting = threading.Event()

    def wait() -> None:
        try:
            reserve(ask(Layout(tp=6, dp=1, pp=1), "later", priority=2), Patience(60.0, stop_waiting.is_set))
        except GaveUp:
            return
        raise AssertionError("it was to wait")

    blocker = reserve(ask(Layout(tp=2), "pair"), Patience(WAIT_S))
    waits = threading.Thread(target=wait)
    waits.start()
    try:
        assert eventually(lambda: len(waiting()) == 1, WAIT_S)
        names = letters()
        assert eventually(lambda: sum(state.free for state in survey().nodes) == 4, 10.0)
        found = survey()
    finally:
        stop_waiting.set()
        waits.join(WAIT_S)
        for group in (holder.group, blocker.group, used):
            remove_placement_group(group)
    nodes = {names[s.machine.name]: (s.machine.kind, s.machine.devices, s.free, dict(s.held)) for s in found.nodes}
    return nodes, [(ticket.job, ticket.priority, ticket.needs) for ticket in found.waiting]


def ranks_on_gpus() -> tuple[list[str], dict[int, tuple[str, str]], list[str]]:
    """(islands as discovered, node and GPU of each rank, nodes told of as bound) of a planned job whose island is taken."""
    assert settled()
    cluster = discover("h100-sxm")
    layout = Layout(pp=2, tp=2)
    names = letters()
    planned = place(layout, replace(cluster, nodes=tuple(node for node in cluster.nodes if names[node.name] == "a")))
    moved: list[str] = []
    group = RayGroup(
        terms=Terms(known=cluster.nodes),
        on_bound=lambda launch, bound: moved.extend(names[slot.node] for slot in bound.placement.slots),
    )
    blocked = placement_group([{"GPU": 1}], bundle_label_selector=[{LETTER: "a"}])
    assert blocked.wait(WAIT_S)
    try:
        group.start(Launch("dummy", layout, planned, "dummy_rank", {"does": "step"}, "cuda"), never)
        came = collect(group, lambda seen: len(ranks_of(seen, "started")) == 4, 60.0)
        sites = {rank: names[stage.slot.node] for stage in group._stages for rank in stage.slot.ranks}
        gpus = {m.rank: (sites[m.rank], m.message["gpu"]) for m in came if m.message["type"] == "started"}
    finally:
        group.close()
        remove_placement_group(blocked)
    return sorted(cluster.islands), gpus, moved
