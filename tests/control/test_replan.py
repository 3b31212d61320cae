"""When a running job moves: tables of single decisions, and long runs under drawn conditions."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.control.event import BetterPlan, GangDone, KillDone, Placed, RankExited, Started, StepDone, Submitted
from rayplane.control.moves import Moves, followed
from rayplane.control.outlook import Outlook, flaw
from rayplane.control.replan import AGREE, COOL_DOWN_S, LEAST_GAIN, LEAST_GAIN_OTHER, Experience, Standing, decide, pointless
from rayplane.control.state import Arrangement, Draining, Failure, Killing, Placing, Progress, Running, Starting
from rayplane.spec.layout import Layout
from rayplane.spec.observation import Observation, RankMeans
from rayplane.spec.plan import Placement


def arranged(step_s=1.0, **layout):
    return Arrangement(Layout(**layout), Placement(()), step_s)


NOW = arranged(pp=2, boundaries=(4, 4))
CUT = arranged(0.7, pp=2, boundaries=(6, 2))
WIDE = arranged(0.6, dp=4)
AT = Standing(1000.0, NOW, 1.0, 1000, 20.0, 2, 4)


def decided(at, seen, times=AGREE, of=None):
    of = of or Experience()
    for _ in range(times):
        of, decision = decide(of, at, seen)
    return of, decision


def test_a_better_cut_is_moved_to_when_it_is_seen_twice():
    of, first = decide(Experience(), AT, Outlook(1.0, CUT))
    assert first.to is None and first.why.startswith("to be seen again")
    of, second = decide(of, AT, Outlook(1.0, CUT))
    assert second.to == CUT
    assert second.why == "a step should take 0.7 s, not 1 s, which saves 300 s of 1e+03 s, and moving takes 20 s"


STAY = {
    "nothing is better": (AT, Outlook(1.0)),
    "it is what runs": (AT, Outlook(1.0, NOW)),
    "the gain is small": (AT, Outlook(1.0, replace(CUT, step_s=1.0 - LEAST_GAIN + 0.001))),
    "the gain of other degrees is small": (AT, Outlook(1.0, None, replace(WIDE, step_s=1.0 - LEAST_GAIN_OTHER + 0.001))),
    "the move costs more": (replace(AT, cost_s=301.0), Outlook(1.0, CUT)),
    "the end is near": (replace(AT, steps_left=60), Outlook(1.0, CUT)),
    "nothing is known of the cost": (replace(AT, cost_s=math.inf), Outlook(1.0, CUT)),
    "too many devices": (replace(AT, most=3), Outlook(1.0, None, WIDE)),
    "too few devices": (AT, Outlook(1.0, None, arranged(0.1, tp=1))),
    "the step is no number": (replace(AT, step_s=math.nan), Outlook(1.0, CUT)),
    "the step is nothing": (replace(AT, step_s=0.0), Outlook(1.0, CUT)),
    "the prediction is no number": (AT, Outlook(math.nan, CUT)),
    "the promise is no number": (AT, Outlook(1.0, replace(CUT, step_s=math.nan))),
    "the planner is off by as much": (replace(AT, step_s=1.0), Outlook(0.7, CUT)),
}


@pytest.mark.parametrize(("at", "seen"), STAY.values(), ids=STAY)
def test_it_stays_where(at, seen):
    assert decided(at, seen, 5)[1].to is None


def test_what_keeps_the_degrees_goes_first():
    assert decided(AT, Outlook(1.0, CUT, WIDE))[1].to == CUT
    assert decided(AT, Outlook(1.0, replace(CUT, step_s=0.99), WIDE))[1].to == WIDE


def test_one_doubtful_look_between_begins_anew():
    of, _ = decide(Experience(), AT, Outlook(1.0, CUT))
    of, _ = decide(of, AT, Outlook(1.0))
    assert decide(of, AT, Outlook(1.0, CUT))[1].to is None


def test_after_a_move_there_is_a_cool_down_that_doubles_with_every_broken_promise():
    of, decision = decided(AT, Outlook(1.0, CUT))
    moved = replace(AT, arrangement=decision.to)
    assert pointless(of, replace(moved, now_s=AT.now_s + COOL_DOWN_S - 1))
    assert not pointless(of, replace(moved, now_s=AT.now_s + COOL_DOWN_S))
    kept, _ = decide(of, replace(moved, step_s=0.8, now_s=AT.now_s + 2 * COOL_DOWN_S), Outlook(0.7))
    broken, _ = decide(of, replace(moved, step_s=0.9, now_s=AT.now_s + 2 * COOL_DOWN_S), Outlook(0.7))
    assert (kept.cool_down_s, broken.cool_down_s) == (COOL_DOWN_S, 2 * COOL_DOWN_S)


def test_a_layout_that_disappointed_is_left_again_but_not_tried_a_second_time():
    of, _ = decided(AT, Outlook(1.0, CUT))
    there = replace(AT, arrangement=CUT, step_s=1.2, now_s=AT.now_s + 1000)
    of, back = decided(there, Outlook(0.7, NOW), of=of)
    assert back.to.layout == NOW.layout and back.to.step_s == pytest.approx(1.0)
    assert decided(replace(AT, now_s=there.now_s + 10000), Outlook(1.0, CUT), 5, of)[1].to is None


LAYOUTS = [Layout(pp=2, boundaries=(n, 8 - n)) for n in range(9)] + [Layout(dp=dp) for dp in (1, 2, 3, 4, 8)]
times_s = st.lists(st.floats(0.1, 10.0), min_size=len(LAYOUTS), max_size=len(LAYOUTS))


@given(st.data(), times_s, times_s, st.integers(0, len(LAYOUTS) - 1), st.floats(0.1, 500.0))
def test_under_constant_conditions_it_comes_to_rest_within_its_limits(data, true_s, predicted_s, first, cost_s):
    """Whatever the planner believes: it knows nothing of the truth but what is measured of the layout that runs."""
    true, predicted = dict(zip(LAYOUTS, true_s, strict=True)), dict(zip(LAYOUTS, predicted_s, strict=True))
    least, most = data.draw(st.integers(1, 2)), data.draw(st.integers(2, 8))
    of, now, now_s, moves = Experience(), Arrangement(LAYOUTS[first], Placement(())), 0.0, []
    for _ in range(200):
        now_s += 60.0
        best = [Arrangement(x, Placement(()), predicted[x]) for x in sorted(LAYOUTS, key=predicted.get) if x != now.layout]
        cheap = next((a for a in best if now.layout.pp == a.layout.pp == 2), None)
        other = next((a for a in best if (a.layout.pp, a.layout.dp) != (now.layout.pp, now.layout.dp)), None)
        noise = data.draw(st.floats(0.99, 1.01))
        at = Standing(now_s, now, noise * true[now.layout], 10**6, cost_s, least, most)
        of, decision = decide(of, at, Outlook(predicted[now.layout], cheap, other))
        if decision.to:
            now = decision.to
            moves.append(now.layout)
            assert least <= now.layout.size <= most
    assert len(moves) <= 2 * len(LAYOUTS)
    assert len(moves) == len(set(moves)) or true[moves[-1]] <= 1.05 * true[LAYOUTS[first]]


@given(
    st.lists(st.sampled_from([1.0, math.nan, math.inf, 0.0, -1.0]), min_size=2, max_size=6), st.sampled_from([0.5, math.nan, 0.0, -1.0])
)
def test_nothing_that_is_no_number_ever_moves_a_job(steps_s, promised_s):
    of, seen = Experience(), Outlook(1.0, replace(CUT, step_s=promised_s))
    for before_s, step_s in zip([math.nan, *steps_s], steps_s, strict=False):
        of, decision = decide(of, replace(AT, step_s=step_s), seen)
        if decision.to:
            assert (before_s, step_s, promised_s) == (1.0, 1.0, 0.5)


PHASES = {"forward": 1.0, "backward": 2.0, "recv_wait": 0.0}
GOOD = Observation(16, tuple(RankMeans(0, stage, stage, PHASES, {}) for stage in range(2)))
FLAWS = {
    "": GOOD,
    "rank 1: forward is nan": replace(GOOD, ignored=("rank 1: forward is nan",)),
    "1 of 2 ranks were seen": replace(GOOD, ranks=GOOD.ranks[:1]),
    "0 of 2 ranks were seen": Observation(0, ()),
    "3 of 2 ranks were seen": replace(GOOD, ranks=(*GOOD.ranks, RankMeans(0, 1, 2, PHASES, {}))),
    "ranks of 2 replicas of 1 stages were seen": replace(GOOD, ranks=tuple(replace(r, replica=r.rank, stage=0) for r in GOOD.ranks)),
    "rank 1: backward is 0": replace(GOOD, ranks=(GOOD.ranks[0], replace(GOOD.ranks[1], phases={"forward": 1.0}))),
}


@pytest.mark.parametrize(("reason", "seen"), FLAWS.items())
def test_what_is_missing_in_an_observation_is_named(reason, seen):
    assert flaw(seen, Layout(pp=2)) == reason


P = Progress(1, 3)
MOVING = Draining(P, CUT)


def test_a_move_costs_what_it_takes_from_the_wish_to_the_next_step():
    events = [(Placing(P), Submitted(P.checkpoint, NOW), 10.0), (Starting(P), Placed(), 11.0), (Running(P), Started(0), 14.0)]
    start = Moves()
    for state, event, now_s in events:
        start = followed(start, state, event, now_s)
        assert start.cost_s is None
    start = followed(start, Running(P), StepDone(1), 15.0)
    assert start.cost_s == 5.0
    moved = [(MOVING, BetterPlan(CUT, ""), 20.0), (MOVING, StepDone(2), 21.0), (Placing(P), GangDone(2, True), 22.0)]
    for state, event, now_s in [*moved, (Starting(P), Placed(), 22.0), (Running(P), Started(2), 22.5), (Running(P), StepDone(3), 23.0)]:
        start = followed(start, state, event, now_s)
    assert start == Moves(3.0)
    assert followed(start, Running(P), StepDone(4), 99.0) == start


def test_of_a_move_that_fails_nothing_is_learned():
    moves = followed(Moves(5.0), MOVING, BetterPlan(CUT, ""), 20.0)
    moves = followed(moves, Killing(P, (Failure((1,), "dead"),), "retry"), RankExited(1, 1, 0), 21.0)
    moves = followed(moves, Placing(P), KillDone(P.checkpoint), 22.0)
    assert followed(moves, Running(P), StepDone(3), 30.0) == Moves(5.0)
