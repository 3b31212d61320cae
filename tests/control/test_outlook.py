"""What the planner sees for a running job: within what the job leaves open, and on the devices that are there."""

from dataclasses import replace

import pytest

from rayplane.control.leeway import Leeway
from rayplane.control.outlook import look
from rayplane.control.state import Arrangement
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.step.train import Pricer
from rayplane.spec.job import LayoutSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.observation import Observation, RankMeans
from rayplane.spec.plan import Workload

MODEL = ModelSpec(layers=12, hidden=512, heads=8, kv_heads=8, head_dim=64, mlp=1376, vocab=1000)
WORK = Workload(16, 256, "fp32")


def nodes(count):
    return homogeneous({f"node-{i}": 1 for i in range(count)}, "cpu", 10**10, {})


def running(leeway, cluster):
    found = leeway.plan(cluster)
    return Arrangement(found.layout, found.placement, found.estimate.step_s)


def seen(now, cluster, pace):
    """What ranks report that compute at these paces, and as planned otherwise."""
    pricer = Pricer(MODEL, WORK, cluster)
    draft = pricer.draft(pricer.outline(now.layout))
    busy = []
    for rank in range(now.layout.size):
        own = [draft.stages.compute[c] for c in now.layout.chunks_of_stage(now.layout.coord(rank).pp)]
        busy.append([draft.outline.rounds * pace[rank] * sum(s) for s in ([c.forward for c in own], [c.backward for c in own])])
    step_s = max(map(sum, busy)) * 1.1
    phases = [{"forward": f, "backward": b, "recv_wait": step_s - f - b} for f, b in busy]
    coords = [now.layout.coord(rank) for rank in range(now.layout.size)]
    return Observation(16, tuple(RankMeans(c.dp, c.pp, rank, phases[rank], {}) for rank, c in enumerate(coords)))


PP2 = {"pp": 2, "micro_batch": 1}


def outlook(section, cluster, pace=(1.0, 3.0), now=None, there=None, **limits):
    leeway = Leeway(MODEL, WORK, LayoutSection(**section) if section else None, **limits)
    now = now or running(leeway, cluster)
    return now, look(leeway, now, there or cluster, seen(now, cluster, pace))


def test_layers_go_from_a_slow_stage_under_the_same_degrees():
    now, found = outlook(PP2, nodes(2))
    assert found.cheap.layout == replace(now.layout, boundaries=found.cheap.layout.boundaries)
    assert found.cheap.layout.boundaries[1] < now.layout.boundaries[1] and sum(found.cheap.layout.boundaries) == 12
    assert found.cheap.step_s < 0.8 * found.step_s
    assert found.cheap.placement == now.placement and found.other is None


def test_stages_at_the_same_pace_stay_as_they_are():
    _, found = outlook(PP2, nodes(2), pace=(1.3, 1.3))
    assert found.cheap is None


def test_boundaries_that_the_job_gives_stay():
    _, found = outlook({**PP2, "boundaries": [6, 6]}, nodes(2))
    assert found.cheap is None and found.other is None


def test_an_open_micro_batch_may_change_and_a_given_one_may_not():
    open_ = outlook({"pp": 2, "boundaries": [6, 6]}, nodes(2))
    assert open_[1].cheap.layout.boundaries == (6, 6) and open_[1].cheap.layout.micro_batch != open_[0].layout.micro_batch


def test_devices_that_have_come_are_seen_by_an_automatic_layout_up_to_max_devices():
    leeway = Leeway(MODEL, WORK, None)
    now = running(leeway, nodes(2))
    pace = (1.0,) * 2
    _, more = outlook(None, nodes(2), pace, now, nodes(4))
    assert more.other.layout.size == 4 and len(more.other.placement.slots) >= 2 and more.other.step_s < now.step_s
    _, bounded = outlook(None, nodes(2), pace, now, nodes(4), most=2)
    assert bounded.other is None or bounded.other.layout.size <= 2


def test_a_given_layout_that_has_shrunk_grows_back_to_what_the_job_says_and_no_further():
    section, leeway = {"dp": 3, "micro_batch": 1}, Leeway(MODEL, WORK, LayoutSection(dp=3, micro_batch=1), least=1)
    layout, placement, step_s = leeway.rearranged(running(leeway, nodes(3)).layout, running(leeway, nodes(3)).placement, nodes(2))
    shrunk = Arrangement(layout, placement, step_s)
    assert layout.dp == 2
    _, found = outlook(section, nodes(2), (1.0, 1.0), shrunk, nodes(8), least=1)
    assert found.other.layout == replace(layout, dp=3)
    _, whole = outlook(section, nodes(3), (1.0,) * 3, running(leeway, nodes(3)), nodes(8), least=1)
    assert whole.other is None


def test_a_slow_device_is_no_reason_to_hope_for_layouts_that_wait_for_it_as_well():
    now, found = outlook(None, nodes(4), (1.0, 1.0, 1.0, 3.0))
    assert now.layout.size == 4
    for other in filter(None, (found.cheap, found.other)):
        assert other.step_s > now.step_s


@pytest.mark.parametrize(("most", "nodes_left"), [(3, (2, 1)), (4, (2, 2)), (1, (1,))])
def test_a_job_takes_the_first_devices_up_to_max_devices(most, nodes_left):
    cluster = homogeneous({"a": 2, "b": 4}, "cpu", 10**10, {})
    assert tuple(node.devices for node in Leeway(MODEL, WORK, None, most=most).within(cluster).nodes) == nodes_left
