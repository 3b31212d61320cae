"""How many requests are out, and what follows from what comes back: tables without a network."""

import json
from dataclasses import replace

import pytest

from rayplane.api.batch.pace import MIN_SPARE, Pace, Seen, first_pace, looked, paused, refused
from rayplane.api.batch.prompts import Census
from rayplane.api.batch.tally import Tally
from rayplane.api.batch.verdict import MAX_TRIES, Again, GiveUp, Lost, Reply, Write, verdict

AUTO = Pace(limit=64, most=1000, steady=False)


@pytest.mark.parametrize(
    ("concurrency", "seen", "most", "limit"),
    [
        (None, Seen(1, 0, 0), 1000, 16),
        (None, Seen(3, 0, 0), 1000, 48),
        (None, None, 1000, 16),
        (None, Seen(8, 0, 0), 50, 50),
        (5, Seen(3, 0, 0), 1000, 5),
        (5000, None, 1000, 1000),
    ],
)
def test_it_begins_with_what_replicas_surely_take(concurrency, seen, most, limit):
    assert first_pace(concurrency, seen, most).limit == limit


@pytest.mark.parametrize(
    ("pace", "seen", "out", "limit"),
    [
        (AUTO, Seen(1, 64, 0), 64, 128),  # the engine takes all of them
        (AUTO, Seen(1, 64, 0), 40, 64),  # there is room already
        (replace(AUTO, bold=False), Seen(1, 64, 0), 64, 68),
        (replace(AUTO, limit=1, bold=False), Seen(1, 1, 0), 1, 2),
        (replace(AUTO, most=100), Seen(1, 64, 0), 64, 100),
        (AUTO, Seen(1, 32, 16), 64, 64),  # some wait, as they should
        (AUTO, Seen(1, 16, 48), 64, 24),  # far more wait
        (AUTO, Seen(1, 500, 900), 10, 64),  # not ours
        (Pace(64, 64, steady=True), Seen(1, 16, 48), 64, 64),
    ],
)
def test_a_look_at_the_service_changes_how_many(pace, seen, out, limit):
    assert looked(pace, seen, out).limit == limit


def test_engines_are_full_soon_and_their_queue_is_short():
    """An engine that runs 200 at a time."""
    pace = first_pace(None, Seen(1, 0, 0), 4096)
    limits = []
    for _ in range(20):
        out = pace.limit
        pace = looked(pace, Seen(1, min(200, out), max(0, out - 200)), out)
        limits.append(pace.limit)
    assert min(limits[4:]) >= 200 + MIN_SPARE and max(limits) <= 512
    assert limits[-1] == limits[-2] <= 300


def test_after_429_only_so_many_are_out_and_nothing_new_goes_before_its_time():
    pace = AUTO
    for out in (63, 62, 61, 20):  # refusals come back one by one
        pace = refused(pace, out, now_s=100.0, after_s=1.0)
    assert (pace.limit, pace.bold) == (20, False)
    assert (pace.room(10, 100.9), pace.room(10, 101.0), pace.room(20, 101.0), pace.room(30, 101.0)) == (0, 10, 0, 0)
    assert refused(pace, 0, 101.0, 1.0).limit == 1


def test_a_small_queue_is_met_with_few_refusals():
    """An engine that runs 32 and lets 4 wait: refusals a second stay below one in ten answers."""
    pace, asked, refusals = first_pace(None, Seen(1, 0, 0), 4096), 0, 0
    for second in range(100):
        taken = min(pace.limit, 36)
        for _ in range(pace.limit - taken):
            pace = refused(pace, taken, float(second), 1.0)
            refusals += 1
        asked += taken
        pace = looked(pace, Seen(1, min(32, taken), max(0, taken - 32)), taken)
    assert refusals < asked / 10 and taken >= 32


def test_a_pause_is_never_shortened():
    assert paused(paused(AUTO, 10.0, 30.0), 11.0, 1.0).resume_at_s == 40.0


def reply(status, body=b'{"id": "cmpl-1"}', after_s=None):
    return Reply(status, body, after_s)


REFUSED = b'{"error": {"message": "m: too long"}}'


@pytest.mark.parametrize(
    ("came", "follows"),
    [
        (reply(200), Write(200, {"id": "cmpl-1"}, "cmpl-1")),
        (reply(400, REFUSED), Write(400, json.loads(REFUSED), "")),
        (reply(413, b"<html>too large</html>"), Write(413, {"error": {"message": "<html>too large</html>"}}, "")),
        (reply(504, REFUSED), Write(504, json.loads(REFUSED), "")),
        (reply(429, REFUSED, 3.0), Again(3.0, tried=False, busy=True)),
        (reply(429, REFUSED), Again(1.0, tried=False, busy=True)),
        (reply(503, REFUSED, 1e9), Again(60.0, tried=False)),
        (reply(503, REFUSED), Again(1.0, tried=True)),
        (reply(500, REFUSED), Again(1.0, tried=True)),
        (reply(408, REFUSED), Again(1.0, tried=True)),
        (reply(200, b"<html>"), Again(1.0, tried=True)),
        (Lost("refused", sent=False), Again(1.0, tried=False)),
        (Lost("reset", sent=True), Again(1.0, tried=True)),
    ],
)
def test_what_follows_from_what_came(came, follows):
    assert verdict(came, 0) == follows


def test_a_request_that_fails_again_and_again_is_given_up():
    waits = [verdict(reply(500, REFUSED), tries) for tries in range(MAX_TRIES)]
    assert waits == [*(Again(2.0**tries, tried=True) for tries in range(MAX_TRIES - 1)), GiveUp("500: m: too long")]
    assert verdict(reply(429, REFUSED), 99) == Again(1.0, tried=False, busy=True)


def test_the_rest_is_timed_at_the_pace_of_the_last_minute():
    now_s = 0.0
    tally = Tally(Census(requests=1000, skipped=100, failed_before=0, foreign=0), lambda: now_s)
    tally.begin()
    answer = Write(200, {"usage": {"prompt_tokens": 3, "completion_tokens": 5}}, "")
    assert tally.remaining_s() is None
    for _ in range(200):
        now_s += 1.0
        tally.add(answer)
    assert (tally.settled, tally.left, tally.output_tokens, tally.prompt_tokens) == (300, 700, 1000, 600)
    for _ in range(100):  # twice as fast from now on
        now_s += 1.0
        for _ in range(2):
            tally.add(answer)
    assert tally.recent() == pytest.approx((2.0, 10.0), rel=0.05)
    assert tally.remaining_s() == pytest.approx(250.0, rel=0.05)
    assert (tally.wall_s, tally.output_tokens_s) == (300.0, pytest.approx(2000 / 300))
