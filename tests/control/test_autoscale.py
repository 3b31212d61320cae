"""How many replicas: what follows from what is seen, as a table, and over an hour of simulated traffic."""

import math
from collections import deque
from dataclasses import replace
from itertools import pairwise

import pytest

from rayplane.control.autoscale import (
    CALM_S,
    IDLE_S,
    LATE_S,
    MAX_PATIENCE_S,
    QUEUED_S,
    SETTLE_S,
    Limits,
    Scaler,
    scale,
)
from rayplane.control.load import Load, ReplicaLoad

LIMITS = Limits(1, 4, ttft_s=0.5, itl_s=0.05)
CALM = Load(requests_s=1.0, prompt_tokens_s=100, output_tokens_s=100, ttft_p99_s=0.1, itl_p99_s=0.02, queue_p99_s=0.01, running=2)
LATE = replace(CALM, ttft_p99_s=0.9)
SLOW = replace(CALM, itl_p99_s=0.08)
CLOSE = replace(CALM, ttft_p99_s=0.45)
QUEUED = replace(CALM, queue_p99_s=0.3, replicas={0: ReplicaLoad("live", 9, 5)})
REFUSED = replace(CALM, refused_s=0.5)
UNPLACED = replace(CALM, unplaced=3)
WAITED = replace(CALM, queue_p99_s=0.3)
"""Someone has waited for too long, but nobody does now."""
IDLE = Load()


def always(replicas, load):
    return True


def never(replicas, load):
    return False


def after(seconds, load, wanted=2, holds=always, limits=LIMITS, serving=None):
    """How many are wanted when it has looked so for so long, looked at each second."""
    scaler = Scaler(wanted)
    for now_s in range(math.ceil(seconds) + 1):
        scaler = scale(scaler, load, wanted if serving is None else serving, float(now_s), limits, holds)
        if scaler.wanted != wanted:
            break
    return scaler.wanted


@pytest.mark.parametrize(
    ("load", "seconds", "wanted"),
    [
        (LATE, LATE_S - 1, 2),
        (LATE, LATE_S, 3),
        (SLOW, LATE_S, 3),
        (QUEUED, QUEUED_S - 1, 2),
        (QUEUED, QUEUED_S, 3),
        (REFUSED, QUEUED_S, 3),
        (UNPLACED, QUEUED_S, 3),
        (WAITED, CALM_S - 1, 2),
        (CALM, CALM_S - 1, 2),
        (CALM, CALM_S, 1),
        (CLOSE, 10 * CALM_S, 2),
        (None, 10 * IDLE_S, 2),
        (replace(LATE, requests_s=math.nan), 10 * LATE_S, 2),
        (replace(CALM, itl_p99_s=math.nan), 10 * CALM_S, 2),
        (replace(IDLE, output_tokens_s=math.inf), 10 * IDLE_S, 2),
    ],
)
def test_what_is_seen_for_how_long(load, seconds, wanted):
    assert after(seconds, load) == wanted


def test_one_fewer_only_where_the_model_says_that_it_would_hold():
    asked = []
    assert after(10 * CALM_S, CALM, holds=lambda n, load: asked.append(n) or False) == 2
    assert set(asked) == {1} and len(asked) == 10  # once for each wait, not each second


def test_more_as_the_model_says_but_no_more_than_twice_as_many():
    assert after(LATE_S, LATE, wanted=2, holds=never) == 4
    assert after(LATE_S, LATE, wanted=1, holds=never) == 2
    assert after(LATE_S, LATE, wanted=2, holds=lambda n, load: n >= 3) == 3


def test_no_traffic_leads_to_the_floor_at_once():
    assert after(IDLE_S - 1, IDLE, wanted=4, holds=never) == 4
    assert after(IDLE_S, IDLE, wanted=4, holds=never) == 1
    assert after(2 * IDLE_S, replace(IDLE, running=1), wanted=4, holds=never) == 4


def test_nothing_follows_while_replicas_start_or_drain():
    assert after(10 * LATE_S, LATE, serving=1) == 2
    assert after(10 * LATE_S, LATE, serving=-1) == 2


def test_wanted_stays_within_bounds_whatever_is_seen():
    assert after(LATE_S * 3, LATE, wanted=4, holds=never) == 4
    assert after(0, None, wanted=9) == 4
    assert after(0, None, wanted=1, limits=replace(LIMITS, least=3)) == 3


def test_limits_that_are_left_out_still_scale_by_the_queue():
    free = Limits(1, 4)
    assert after(QUEUED_S, replace(QUEUED, queue_p99_s=1.5), limits=free) == 3
    assert after(10 * LATE_S, replace(CLOSE, ttft_p99_s=30.0), limits=free, holds=never) == 2


def test_figures_that_were_missing_for_a_moment_begin_the_wait_anew():
    scaler = Scaler(2)
    for now_s in range(200):
        scaler = scale(scaler, None if now_s == 30 else LATE, 2, float(now_s), LIMITS, always)
        if scaler.wanted != 2:
            break
    assert now_s == 31 + LATE_S


def test_who_takes_a_step_back_soon_waits_twice_as_long():
    scaler, now_s, waits = Scaler(2), 0.0, []
    for _ in range(6):
        began_s = now_s
        while scaler.wanted == 2:
            now_s += 1
            scaler = scale(scaler, CALM, 2, now_s, LIMITS, always)
        waits.append(now_s - began_s)
        while scaler.wanted == 1:
            now_s += 1
            scaler = scale(scaler, LATE, 1, now_s, LIMITS, always)
    assert all(later >= 1.5 * sooner for sooner, later in pairwise(waits[:4]))
    assert max(waits) <= MAX_PATIENCE_S + SETTLE_S + 1


class Service:
    """A fluid queue before replicas that serve RATE requests/s each; figures are those of the last 30 s."""

    RATE, START_S, ALONE_S = 2.0, 20, 0.1

    def __init__(self, replicas):
        self.ready_s = [0.0] * replicas
        self.backlog = 0.0
        self.waits = deque([self.ALONE_S], maxlen=30)

    def serving(self, now_s):
        return sum(ready_s <= now_s for ready_s in self.ready_s)

    def want(self, replicas, now_s):
        while len(self.ready_s) < replicas:
            self.ready_s.append(now_s + self.START_S)
        del self.ready_s[replicas:]

    def second(self, requests_s, now_s):
        capacity = self.RATE * self.serving(now_s)
        self.backlog = max(0.0, self.backlog + requests_s - capacity)
        busy = min(0.98, requests_s / capacity)
        self.waits.append(self.backlog / capacity + self.ALONE_S / (1 - busy) ** 0.5)
        worst = max(self.waits)
        waiting = {0: ReplicaLoad("live", 1, round(self.backlog))}
        times = {"ttft_p99_s": worst, "itl_p99_s": 0.02, "queue_p99_s": worst - self.ALONE_S} if requests_s else {}
        return Load(min(requests_s, capacity), 100 * requests_s, 50 * requests_s, replicas=waiting, running=round(requests_s), **times)


def holds(replicas, load):
    return 1.25 * load.offered_s <= 0.85 * Service.RATE * replicas


def simulated(traffic, seconds):
    """(how many were wanted at each second, seconds with a late first token)."""
    service, scaler, wanted, late = Service(1), Scaler(1), [], []
    for now_s in range(seconds):
        load = service.second(traffic(now_s), now_s)
        late.append(service.waits[-1] > LIMITS.ttft_s)
        settled = service.serving(now_s) if service.serving(now_s) == len(service.ready_s) else -1
        scaler = scale(scaler, load, settled, float(now_s), LIMITS, holds)
        service.want(scaler.wanted, now_s)
        wanted.append(scaler.wanted)
    return wanted, late


def changes(wanted):
    return sum(a != b for a, b in pairwise(wanted))


def test_a_load_that_rises_and_falls_is_followed_without_flapping():
    """Up to 6.4 requests/s in 20 minutes, there for 20, and back to none in 20."""

    def traffic(s):
        return 6.4 * min(s / 1200, 1, max(0, (3600 - s) / 1200))

    wanted, late = simulated(traffic, 5400)
    assert max(wanted) == 4 and wanted[-1] == 1
    assert changes(wanted) <= 8
    assert not any(late[1500:2400])  # all is well while the load stays
    print(f"ramp: {changes(wanted)} changes, {sum(late)} of {len(late)} seconds late")
    assert sum(late) < 0.06 * len(late)


def test_a_sudden_load_is_caught_up_with_in_four_minutes():
    wanted, late = simulated(lambda s: 0.5 if s < 300 else 6.0, 1200)
    assert wanted[-1] == 4 and changes(wanted) <= 3
    assert not any(late[540:])


@pytest.mark.parametrize("level", [0.5, 1.2, 1.6, 1.9, 2.6, 3.4, 3.9, 5.0])
def test_a_steady_load_with_ripples_settles(level):
    wanted, late = simulated(lambda s: level * (1 + 0.1 * math.sin(s / 17)), 7200)
    assert changes(wanted) <= 4
    assert changes(wanted[3600:]) <= 1
    assert sum(late[600:]) < 0.02 * len(late)
