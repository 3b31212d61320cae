"""What several ingresses say as one load; a plan's replicas as places that are taken and given back."""

import json
import math

import fake_service
import pytest
from fake_service import TRAFFIC

from rayplane.control.berths import Berths
from rayplane.control.load import load_of
from rayplane.control.service_loop import _reachable
from rayplane.control.way import Way
from rayplane.plan.choice.place import place
from rayplane.plan.machine.catalog import homogeneous
from rayplane.plan.serving.serve_places import placements_of
from rayplane.spec.layout import Layout

ONE, TWO = Way(), Way(cores=2)
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
    placements = placements_of(place(layout, homogeneous({"a": 8, "b": 4}, "cpu", 2**34, {})))
    assert len(placements) == 3
    for placement in placements:
        assert [slot.ranks for slot in placement.slots] == [(0, 1), (2, 3)]
        assert {slot.replica for slot in placement.slots} == {0} and len({slot.node for slot in placement.slots}) == 1


def test_a_berth_that_failed_is_taken_last():
    berths = Berths(3, fake_service.place)
    taken = [berths.take(number, ONE).devices for number in range(2)]
    berths.give(0, good=False)
    berths.give(1, good=True)
    assert taken == [(0,), (1,)]
    assert [berths.take(number, ONE).devices for number in (2, 3, 4)] == [(1,), (2,), (0,)] and berths.take(5, ONE) is None
    for number in (3, 2, 4):
        berths.give(number, good=False)
    assert [berths.take(number, ONE).devices for number in (6, 7, 8)] == [(2,), (1,), (0,)]  # the one that failed longest ago


def test_those_that_are_in_the_way_of_a_larger_replica():
    berths = Berths(4, fake_service.place)
    for number in range(3):
        berths.take(number, ONE)
    assert berths.take(3, TWO) is None
    assert berths.lacking(TWO, [0, 1, 2]) == (2,)
    assert berths.lacking(TWO, [0]) == (0,)
    assert berths.lacking(Way(cores=3), [0, 1, 2]) == (1, 2)
    assert berths.lacking(Way(cores=4), [0, 1]) == () == berths.lacking(TWO, [])
    berths.give(2, good=True)
    assert berths.take(3, TWO).devices == (2, 3)


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
