"""What several ingresses say as one load; a plan's replicas as places that are taken and given back."""

import json
import math

import pytest
from fake_service import TRAFFIC

from rayplane.control.berths import Berths, berths_of
from rayplane.control.load import load_of
from rayplane.control.service_loop import _reachable
from rayplane.plan.choice.place import place
from rayplane.plan.machine.catalog import homogeneous
from rayplane.spec.layout import Layout

SEEN = {"reason": "", "running": 2, "waiting": 1, "kv_usage": 0.5}


def test_rates_add_up_and_the_longest_time_counts():
    other = {**TRAFFIC, "ttft_p99_s": 0.7, "itl_p99_s": None, "unplaced": 3, "replicas": {"4": {**SEEN, "state": "live"}}}
    load = load_of([{**TRAFFIC, "replicas": {"4": {**SEEN, "state": "lost"}}}, other])
    assert (load.requests_s, load.ttft_p99_s, load.itl_p99_s, load.running, load.unplaced) == (2.0, 0.7, 0.01, 2, 3)
    assert load.replicas[4].state == "live"  # one of them reaches it
    assert load.waiting == 4 and load.sound


@pytest.mark.parametrize("field", ["requests_s", "ttft_p99_s"])
def test_a_figure_that_is_no_number_is_seen_after_its_way_through_json(field):
    sent = json.loads(json.dumps({**TRAFFIC, field: math.nan, "replicas": {}}))
    assert not load_of([sent, {**TRAFFIC, "replicas": {}}]).sound


def test_berths_have_ranks_from_0_on_and_keep_stages_and_nodes():
    layout = Layout(dp=3, pp=2, tp=2, boundaries=(2, 2))
    placements = berths_of(place(layout, homogeneous({"a": 8, "b": 4}, "cpu", 2**34, {}))).placements
    assert len(placements) == 3
    for placement in placements:
        assert [slot.ranks for slot in placement.slots] == [(0, 1), (2, 3)]
        assert {slot.replica for slot in placement.slots} == {0} and len({slot.node for slot in placement.slots}) == 1


def test_a_berth_that_failed_is_taken_last():
    berths = Berths(("x", "y", "z"))
    assert [berths.take(), berths.take()] == [0, 1]
    berths.give(0, good=False)
    berths.give(1, good=True)
    assert [berths.take() for _ in range(4)] == [1, 2, 0, None]


@pytest.mark.parametrize(
    ("address", "node", "url"),
    [
        ("127.0.0.1:80", "", "127.0.0.1:80"),
        ("0.0.0.0:80", "", "localhost:80"),
        ("0.0.0.0:80", "gpu-4", "gpu-4:80"),
        ("::1:80", "", "[::1]:80"),
        (":::80", "gpu-4", "gpu-4:80"),
    ],
)
def test_address_that_can_be_asked(address, node, url):
    assert _reachable(address, node) == url
