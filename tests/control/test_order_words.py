"""What each order means in every state of a job, and when it is carried out."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from test_machine import AT, NEW, OLD, STATES

from rayplane.control.event import BetterPlan, PauseRequested, ResumeRequested, StopRequested
from rayplane.control.order import Answer, Order, Verb, meaning, outcome
from rayplane.control.state import Draining, Failed, Finished, Killing, Paused, Placing, Running

LEAVING = ("draining", "killing, to stop", "killing, failed draining", "killing, interrupted")
ENDED = ("finished", "failed")
ELSE = tuple(name for name in STATES if name not in (*LEAVING, *ENDED))
PAUSING = ("pausing", "killing, to pause", "killing, failed pausing")
REFUSED = "refused"
MOVING = {
    **dict.fromkeys(STATES, "later"),
    **dict.fromkeys(("running", "paused"), (BetterPlan,)),
    **dict.fromkeys((*LEAVING, *ENDED), REFUSED),
}
EVENTS = {
    "pause": {
        **dict.fromkeys(ELSE, (PauseRequested,)),
        **dict.fromkeys(PAUSING, ()),
        "paused": "done",
        **dict.fromkeys((*LEAVING, *ENDED), REFUSED),
    },
    "resume": {
        **dict.fromkeys(STATES, REFUSED),
        **dict.fromkeys(("paused", "pausing"), (ResumeRequested,)),
        **dict.fromkeys(("killing, to pause", "killing, failed pausing"), "later"),
    },
    "stop": {**dict.fromkeys(ELSE, (StopRequested,)), **dict.fromkeys(LEAVING, ()), **dict.fromkeys(ENDED, REFUSED)},
    "kill": {**dict.fromkeys(STATES, (StopRequested, StopRequested)), **dict.fromkeys(ENDED, REFUSED)},
    "scale": MOVING,
    "layout": MOVING,
}


@pytest.mark.parametrize(("verb", "state"), list(product(get_args(Verb), STATES)))
def test_every_order_in_every_state(verb, state):
    meant = meaning(Order(verb, 1), STATES[state], NEW if verb in ("scale", "layout") else None)
    match EVENTS[verb][state]:
        case "later":
            assert meant is None
        case "done" | "refused" as answer:
            assert isinstance(meant, Answer) and meant.done == (answer == "done") and meant.message
        case events:
            assert tuple(map(type, meant)) == events


def test_a_move_to_where_the_job_lies_is_done_without_one():
    assert meaning(Order("layout"), Running(AT), replace(OLD, step_s=9.0)) == Answer(True, f"it lies so already: {OLD.layout}")


MOVED = replace(AT, arrangement=NEW)
OUTCOMES = [
    ("pause", Draining(AT, "pause"), None),
    ("pause", Killing(AT, (), "pause"), None),
    ("pause", Paused(AT), True),
    ("pause", Finished(AT, drained=False), False),
    ("pause", Draining(AT), False),
    ("resume", Placing(AT), True),
    ("resume", Draining(AT, OLD), True),
    ("resume", Finished(AT, drained=True), False),
    ("stop", Draining(AT), None),
    ("stop", Finished(AT, drained=True), True),
    ("stop", Finished(AT, drained=False), True),
    ("stop", Failed(AT, "disk full", 1), False),
    ("kill", Killing(AT, (), "interrupt"), None),
    ("kill", Failed(AT, "not saved", 130), True),
    ("layout", Draining(AT, NEW), None),
    ("layout", Placing(MOVED), None),
    ("layout", Running(MOVED), True),
    ("layout", Paused(MOVED), True),
    ("layout", Running(AT), False),
    ("layout", Draining(AT, "pause"), False),
    ("layout", Draining(AT), False),
    ("layout", Failed(AT, "disk full", 1), False),
]


@pytest.mark.parametrize(("verb", "state", "done"), OUTCOMES)
def test_an_order_is_answered_when_it_has_come_to_something(verb, state, done):
    answer = outcome(Order(verb), state, NEW if verb == "layout" else None)
    assert (answer and answer.done) is done
