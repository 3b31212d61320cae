"""Where a job goes on when its devices have changed: with a cluster that is a value, and no process."""

import pytest

from rayplane.cli import devices as devices_module
from rayplane.cli import replanner as replanner_module
from rayplane.cli.devices import SILENT_S, Devices, Supply
from rayplane.cli.replanner import ClusterReplanner
from rayplane.control.leeway import Leeway
from rayplane.control.state import Arrangement
from rayplane.errors import PlacementError
from rayplane.plan.choice.search import plan
from rayplane.plan.machine.catalog import homogeneous
from rayplane.runtime.patience import GaveUp
from rayplane.spec.job import LayoutSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload

MODEL = ModelSpec(layers=8, hidden=512, heads=8, kv_heads=8, head_dim=64, mlp=1376, vocab=1000)
WORK = Workload(24, 256, "fp32")


def nodes(memory_bytes=10**10, **devices):
    return homogeneous(devices, "cpu", memory_bytes, {})


class World:
    """A cluster that changes, and a clock that a wait moves."""

    def __init__(self, cluster):
        self.cluster, self.free, self.silent, self.now_s = cluster, 0, frozenset(), 0.0
        self.said, self.then = [], []

    def supply(self):
        return Supply(lambda: self.cluster, lambda: self.free, lambda names: names - self.silent)

    def sleep(self, seconds):
        self.now_s += seconds
        if self.then and self.now_s >= self.then[0][0]:
            self.cluster = self.then.pop(0)[1]

    def monotonic(self):
        return self.now_s


@pytest.fixture
def began(monkeypatch):
    """A job on a cluster: its arrangement, what replans it, and the world to change."""

    def begin(cluster, section=None, least=None, most=None, wait_s=60.0):
        world = World(cluster)
        for module in (replanner_module, devices_module):
            monkeypatch.setattr(module, "time", world)
        given = LayoutSection(**section) if section else None
        leeway = Leeway(MODEL, WORK, given, least, most)
        found = leeway.plan(cluster)
        devices = Devices(cluster, world.supply(), WORK.precision)
        now = Arrangement(found.layout, found.placement, found.estimate.step_s)
        return now, ClusterReplanner(leeway, devices, world.said.append, wait_s), devices, world

    return begin


def never():
    return False


def where(arrangement):
    return {slot.node for slot in arrangement.placement.slots}


FOUR = nodes(a=1, b=1, c=1, d=1)
DP3 = {"dp": 3, "micro_batch": 2}


def test_the_same_layout_is_placed_anew_where_there_is_room(began):
    now, replanner, _, world = began(FOUR, DP3)
    assert where(now) == {"a", "b", "c"}
    world.cluster = nodes(a=1, c=1, d=1)
    again = replanner.again(now, "node", (1,), never)
    assert again.layout == now.layout and where(again) == {"a", "c", "d"}


def test_a_given_layout_loses_replicas_where_the_job_goes_on_with_fewer_devices(began):
    now, replanner, _, world = began(FOUR, DP3, least=2)
    world.cluster = nodes(a=1, c=1)
    again = replanner.again(now, "node", (1,), never)
    assert (again.layout.dp, again.layout.micro_batch, again.layout.size) == (2, 2, 2) and where(again) == {"a", "c"}


def test_an_automatic_layout_becomes_the_planners_best_for_what_is_left(began):
    now, replanner, _, world = began(FOUR, least=1)
    assert now.layout.size == 4
    world.cluster = nodes(a=1, c=1)
    again = replanner.again(now, "node", (1,), never)
    assert again.layout == plan(MODEL, WORK, world.cluster, None).layout and again.layout.size == 2


def test_without_min_devices_it_waits_for_as_many_as_it_had(began):
    now, replanner, _, world = began(FOUR, {"dp": 4, "micro_batch": 2})
    world.cluster, world.then = nodes(a=1, b=1, c=1), [(20.0, nodes(a=1, b=1, c=1, e=1))]
    again = replanner.again(now, "node", (3,), never)
    assert again.layout == now.layout and where(again) == {"a", "b", "c", "e"} and world.now_s >= 20.0
    (said,) = world.said
    assert "dp4 needs 4 devices, the cluster has 3: 1 missing" in said and "limits.min_devices lets the job go on with fewer" in said


def test_it_goes_no_lower_than_min_devices_and_says_what_is_missing_when_nobody_comes(began):
    now, replanner, _, world = began(FOUR, {"dp": 4, "micro_batch": 2}, least=3)
    world.cluster = nodes(a=1, b=1)
    with pytest.raises(PlacementError, match=r"2 devices, fewer than limits.min_devices \(3\); waited 60 s for devices"):
        replanner.again(now, "node", (3,), never)
    world.cluster = nodes()
    with pytest.raises(PlacementError, match="needs 4 devices, and none is left"):
        replanner.again(now, "node", (0,), never)


def test_a_stop_ends_the_wait(began):
    now, replanner, _, world = began(FOUR, {"dp": 4, "micro_batch": 2})
    world.cluster = nodes(a=1)
    with pytest.raises(GaveUp):
        replanner.again(now, "node", (3,), lambda: world.now_s > 5.0)
    assert world.now_s < 7.0


def test_max_devices_bounds_the_first_plan_and_those_after_it(began):
    now, replanner, _, world = began(FOUR, most=2, least=1)
    assert now.layout.size == 2
    world.cluster = nodes(c=1, d=1, e=1, f=1)
    assert replanner.again(now, "node", (0, 1), never).layout.size == 2


def test_a_node_that_is_listed_and_does_not_answer_is_left_out_for_a_while(began):
    now, replanner, devices, world = began(FOUR, DP3)
    world.silent = frozenset({"b"})
    assert where(replanner.again(now, "node", (1,), never)) == {"a", "c", "d"}
    assert "b" not in {node.name for node in devices.now().nodes}
    world.now_s += SILENT_S
    assert "b" in {node.name for node in devices.now().nodes}


def test_a_node_that_lives_is_used_again(began):
    now, replanner, _, _ = began(FOUR, DP3)
    assert replanner.again(now, "node", (1,), never) == now


def test_a_node_that_is_about_to_be_taken_back_is_left(began):
    now, replanner, _, _ = began(FOUR, DP3)
    assert where(replanner.again(now, "preemption", (0,), never)) == {"b", "c", "d"}


def test_a_slow_node_is_left_as_long_as_others_have_room(began):
    now, replanner, devices, world = began(FOUR, DP3)
    assert not devices.spare(now, 1), "the fourth device is in use"
    world.free = 1
    assert devices.spare(now, 1)
    elsewhere = replanner.again(now, "straggler", (1,), never)
    assert where(elsewhere) == {"a", "c", "d"} and elsewhere.layout == now.layout
    assert not devices.spare(elsewhere, 0), "there is no fifth"
    assert [node.name for node in devices.now().nodes] == ["a", "c", "d", "b"]
    world.cluster = nodes(a=1, b=1, c=1)
    assert where(replanner.again(elsewhere, "node", (2,), never)) == {"a", "b", "c"}


def test_devices_of_one_machine_have_no_spare(began):
    now, _, devices, world = began(nodes(here=4), DP3)
    world.free = 1
    assert not devices.spare(now, 1)


def test_too_little_memory_leads_to_what_needs_less_until_nothing_does(began):
    now, replanner, _, world = began(FOUR)
    needs = []
    while True:
        try:
            now = replanner.again(now, "memory", (0,), never)
        except PlacementError as error:
            why = str(error)
            break
        needs.append(now.layout)
        assert len(needs) < 200
    assert len(set(needs)) == len(needs) >= 2
    assert "no layout fits this cluster" in why and "The model would fit" in why
    assert len(world.said) == len(needs) + 1
    assert all(" was to need " in said and "(weights " in said and said.endswith(", which was too much") for said in world.said)


def test_a_given_layout_that_is_too_large_says_what_would_help(began):
    now, replanner, _, _ = began(FOUR, {"dp": 4, "micro_batch": 6})
    with pytest.raises(PlacementError, match=r"the layout does not fit: .* It would fit with micro_batch: 3"):
        replanner.again(now, "memory", (0,), never)


def test_an_open_micro_batch_gives_way_to_memory(began):
    now, replanner, _, _ = began(FOUR, {"dp": 4})
    leaner = replanner.again(now, "memory", (0,), never)
    assert leaner.layout.micro_batch < now.layout.micro_batch and leaner.layout.dp == 4
