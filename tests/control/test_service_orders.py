"""A service is stopped through its folder: once to finish what runs, or at once."""

from types import SimpleNamespace

import pytest

from rayplane.control.mailbox import Mailbox
from rayplane.control.order import Order
from rayplane.control.service_orders import ServiceOrders
from rayplane.control.stop import Stop


def status(state, message=""):
    return SimpleNamespace(state=state, message=message)


def taken(stop):
    """How often a stop was asked for."""
    return sum(stop.take() for _ in range(5))


@pytest.fixture
def box(tmp_path):
    box = Mailbox(tmp_path)
    box.open()
    return box


@pytest.mark.parametrize(
    ("verbs", "requests", "end", "done"),
    [
        (["stop"], 1, "drained", True),
        (["stop", "stop"], 1, "drained", True),
        (["kill"], 2, "stopped", True),
        (["stop", "kill"], 3, "stopped", True),
        (["stop"], 1, "failed", False),
    ],
)
def test_orders_to_stop_are_answered_at_the_end(box, verbs, requests, end, done):
    stop = Stop()
    with ServiceOrders(box, stop) as orders:
        keys = [box.put(Order(verb)) for verb in verbs]
        orders.on_status(status("serving"))
        assert taken(stop) == requests
        assert not any(box.answer(key) for key in keys)
        orders.on_status(status(end, "why"))
    answer = box.answer(keys[-1])
    assert (answer.done, answer.message) == (done, f"it is {end}: why")


def test_a_service_takes_no_other_order(box):
    stop = Stop()
    with ServiceOrders(box, stop) as orders:
        key = box.put(Order("pause"))
        orders.on_status(status("serving"))
        assert taken(stop) == 0 and not box.answer(key).done
