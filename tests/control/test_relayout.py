"""Whether to cut replicas otherwise: what is seen for how long, what the planner says of it, and that nothing flaps."""

import math
from dataclasses import replace

import pytest

from rayplane.control.autoscale import Limits
from rayplane.control.load import Load, ReplicaLoad
from rayplane.control.relayout import (
    ASK_S,
    FLAP_S,
    GIVEN_UP_S,
    LARGE_S,
    MAX_REST_S,
    PRESSED_S,
    REST_S,
    Mover,
    Offer,
    asked,
    better,
    moving,
    question,
    stayed,
    watched,
)
from rayplane.control.way import Way

LIMITS = Limits(1, 2, ttft_s=0.5, itl_s=0.05)
ONE, TWO, FOUR = Way(), Way(cores=2), Way(cores=4)
CALM = Load(requests_s=1.0, prompt_tokens_s=100, output_tokens_s=100, ttft_p99_s=0.1, itl_p99_s=0.02, queue_p99_s=0.01, running=2)
LATE, SLOW = replace(CALM, ttft_p99_s=0.9), replace(CALM, itl_p99_s=0.08)
QUEUED = replace(CALM, queue_p99_s=0.3, replicas={0: ReplicaLoad("live", 9, 5)})
IDLE = Load()


def first_asked(load, seconds, at_most=True, limits=LIMITS, mover=None):
    """(second, load) of the first question when it looks so for so long; None without one."""
    mover = mover or Mover()
    for now_s in range(math.ceil(seconds) + 1):
        mover = watched(mover, load, at_most, float(now_s), limits)
        if load is not None and (about := question(mover, load, float(now_s))):
            return now_s, about
    return None


@pytest.mark.parametrize("load", [LATE, SLOW, QUEUED, replace(CALM, refused_s=0.5), replace(CALM, unplaced=3)])
def test_limits_that_stay_broken_at_most_replicas_raise_the_question(load):
    assert first_asked(load, PRESSED_S - 1) is None
    assert first_asked(load, PRESSED_S) == (PRESSED_S, load)


@pytest.mark.parametrize(
    ("load", "at_most"),
    [
        (LATE, False),  # more replicas come first
        (None, True),
        (replace(LATE, requests_s=math.nan), True),
        (replace(LATE, ttft_p99_s=math.nan), True),
        (replace(CALM, cached_tokens_s=math.inf), True),
        (IDLE, True),
        (replace(CALM, ttft_p99_s=0.45), True),  # neither broken nor far below
    ],
)
def test_what_raises_none(load, at_most):
    assert first_asked(load, 3 * LARGE_S, at_most) is None


def test_a_service_that_is_too_large_for_long_raises_it_for_the_highest_load_of_that_time():
    assert first_asked(CALM, LARGE_S - 1) is None
    high, mover = replace(CALM, requests_s=3.0, prompt_tokens_s=900, output_tokens_s=300), Mover()
    for now_s in range(int(LARGE_S) + 1):
        load = high if now_s == 100 else CALM
        mover = watched(mover, load, False, float(now_s), LIMITS)
    assert question(mover, CALM, LARGE_S) == high


def test_without_limits_nothing_is_asked():
    for load in (CALM, replace(QUEUED, queue_p99_s=60.0)):
        assert first_asked(load, 2 * LARGE_S, limits=Limits(1, 2)) is None


def test_what_was_missing_for_a_moment_begins_the_wait_anew():
    mover, now_s = Mover(), 0.0
    while question(mover, LATE, now_s) is None:
        now_s += 1
        mover = watched(mover, None if now_s == 60 else LATE, True, now_s, LIMITS)
    assert now_s == 61 + PRESSED_S


def test_a_question_is_not_asked_again_at_once():
    mover = asked(watched(Mover(), LATE, True, 0.0, LIMITS), PRESSED_S)
    assert question(mover, LATE, PRESSED_S + ASK_S - 1) is None
    assert question(mover, LATE, PRESSED_S + ASK_S) == LATE


@pytest.mark.parametrize(
    ("load", "offer", "moves"),
    [
        (LATE, Offer(TWO, 1, None), True),
        (LATE, Offer(FOUR, 2, None), True),
        (LATE, Offer(TWO, 1, 2), False),  # the planner takes the present way for good enough: it errs in one of them
        (LATE, None, False),
        (LATE, Offer(ONE, 2, None), False),
        (CALM, Offer(TWO, 1, 4), True),
        (CALM, Offer(TWO, 1, 3), True),
        (CALM, Offer(TWO, 2, 5), False),  # not clearly fewer
        (CALM, Offer(TWO, 2, 4), False),
        (CALM, Offer(TWO, 1, None), False),  # it does hold it, so nobody knows
        (replace(CALM, ttft_p99_s=0.45), Offer(TWO, 1, None), False),  # no longer so when the answer comes
    ],
)
def test_when_an_answer_moves_the_service(load, offer, moves):
    assert better(watched(Mover(), load, True, 0.0, LIMITS), offer, ONE) is moves


def test_after_a_move_it_rests():
    mover = moving(Mover(), ONE, TWO, 1000.0)
    mover = watched(mover, LATE, True, 1001.0, LIMITS)
    assert question(mover, LATE, 1000.0 + REST_S - 1) is None
    assert question(mover, LATE, 1000.0 + REST_S) == LATE


def test_who_moves_back_soon_rests_twice_as_long_each_time():
    mover, now_s, ways, rests = Mover(), 0.0, [ONE, TWO], []
    for _ in range(9):
        mover = moving(mover, *ways, now_s)
        rests.append(mover.rest_until_s - now_s)
        now_s, ways = mover.rest_until_s, ways[::-1]
    assert rests[:4] == [REST_S, 2 * REST_S, 4 * REST_S, 8 * REST_S] and max(rests) == MAX_REST_S
    late = moving(moving(Mover(), ONE, TWO, 0.0), TWO, ONE, FLAP_S)
    assert late.patience_s == REST_S == moving(moving(Mover(), ONE, TWO, 0.0), TWO, FOUR, 1.0).patience_s


def test_what_was_given_up_is_not_tried_again_for_long():
    mover = watched(stayed(moving(Mover(), ONE, TWO, 0.0), 10.0), LATE, True, 11.0, LIMITS)
    assert question(mover, LATE, 10.0 + GIVEN_UP_S - 1) is None
    assert question(mover, LATE, 10.0 + GIVEN_UP_S) == LATE
