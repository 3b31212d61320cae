"""Where one more replica can be, and which layout another load would want."""

import pytest

from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.serving.serve_capacity import Measured, capacity_for
from rayplane.plan.serving.serve_places import places_of
from rayplane.plan.serving.serve_relayout import compared
from rayplane.plan.serving.serving import asked_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.load import load_model

JOB = ServeJob.model_validate(
    {
        "name": "svc",
        "model": {"preset": "llama3-8b"},
        "serve": {"slo": {"ttft_ms": 400, "tpot_ms": 25}, "load": {"requests_s": 2, "prompt_tokens": 512, "output_tokens": 128}},
    }
)
MODEL = load_model(JOB.model)
GPUS = homogeneous({"a": 4, "b": 4}, "h100-sxm", 80 * 10**9, {})
CORES = homogeneous({"here": 6}, "cpu", 2**36, {})


def capacity(cluster: ClusterSpec, cores=1, **degrees):
    layout = Layout(**degrees)
    return capacity_for(JOB, MODEL, cluster, layout.but(boundaries=even_boundaries(MODEL.layers, layout.pp)), cores)


def seat(cluster, free, cores=1, **degrees):
    return places_of(capacity(cluster, cores, **degrees), cluster).on(frozenset(free))


@pytest.mark.parametrize(
    ("free", "degrees", "devices"),
    [
        (range(8), {"tp": 2}, (0, 1)),
        ((1, 2, 3, 4, 5), {"tp": 2}, (2, 3)),  # where a plan of tp2 alone has one
        ((1, 2), {"tp": 2}, (1, 2)),
        ((3, 4), {"tp": 2}, None),  # not across islands
        ((3, 4), {"pp": 2}, (3, 4)),
        ((0, 1, 2, 5, 6, 7), {"tp": 4}, None),
        ((1, 2, 3, 5, 6, 7), {"pp": 2, "tp": 2}, (1, 2, 5, 6)),
        ((), {}, None),
    ],
)
def test_a_place_on_what_is_free(free, degrees, devices):
    found = seat(GPUS, free, **degrees)
    assert (found[1] if found else None) == devices
    if found:
        ranks = [rank for slot in found[0].slots for rank in slot.ranks]
        assert ranks == list(range(len(devices))) and {slot.replica for slot in found[0].slots} == {0}
        assert [slot.node for slot in found[0].slots for _ in slot.ranks] == ["ab"[device // 4] for device in devices]


def test_ranks_of_several_cores_take_them_all():
    assert seat(CORES, range(6), cores=3)[1] == (0, 1, 2)
    assert seat(CORES, (0, 1, 3, 4, 5), cores=3)[1] == (3, 4, 5)
    assert seat(CORES, (0, 2, 4, 5), cores=2, pp=2)[1] == (0, 2, 4, 5)
    assert seat(CORES, (0, 2, 4), cores=2, pp=2) is None


def test_a_plan_s_replicas_have_devices_of_their_own():
    planned = places_of(capacity(GPUS, tp=2), GPUS).planned
    assert sorted(device for _, devices in planned for device in devices) == list(range(8))


def test_a_load_that_one_layout_does_not_hold_is_held_by_another():
    """A prompt of 12,000 tokens takes one GPU longer than the limit, however many copies there are."""
    asked, one = asked_of(JOB, MODEL, GPUS), capacity(GPUS)
    light = compared(asked, GPUS, one, Measured(1.0, 512, 128))
    assert light.present_devices == light.best.devices == 1
    heavy = compared(asked, GPUS, one, Measured(1.0, 12000, 16))
    assert heavy.present_devices is None and heavy.best.cut.size > 1 and not heavy.best.misses
    assert compared(asked, GPUS, one, Measured(1.0, 12000, 16, cached=0.95)).present_devices == 1
    assert compared(asked, GPUS, one, Measured(1e6, 12000, 16)).best is None
