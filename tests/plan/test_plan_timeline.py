"""The simulated step: bubbles by the book, no deadlock, transfers beside compute, and the recurrences equal to it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.draft import action_cost
from rayplane.plan.recurrence import RECURRENCES, Pipe, lower_bound_s
from rayplane.plan.timeline import Timeline, play
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build
from rayplane.spec.schedule import Action, Op, Schedule, ScheduleError


def played(schedule: str, pipe: Pipe, part: list[float]) -> Timeline:
    stages = len(pipe.forward_s)
    actions = build(Layout(pp=stages, schedule=schedule), len(part))
    return play(actions, action_cost(pipe, part, (0.0,) * stages, 0.0))


def even(stages: int, p2p_s: float = 0.0) -> Pipe:
    return Pipe((1.0,) * stages, (2.0,) * stages, (p2p_s,) * (stages - 1))


@pytest.mark.parametrize("schedule", sorted(BUILDERS))
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 5, 16])
def test_bubble_is_p_minus_1_over_m_plus_p_minus_1(schedule: str, stages: int, microbatches: int) -> None:
    timeline = played(schedule, even(stages), [1.0] * microbatches)
    assert timeline.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1))
    assert timeline.end_s == pytest.approx(3.0 * (microbatches + stages - 1))


@pytest.mark.parametrize("schedule", sorted(BUILDERS))
def test_every_action_is_played_once_and_in_order(schedule: str) -> None:
    actions = build(Layout(pp=4, schedule=schedule), 6)
    timeline = play(actions, action_cost(even(4, 0.3), [1.0] * 6, (0.5,) * 4, 0.25))
    assert tuple(tuple(s.action for s in spans) for spans in timeline.ranks) == actions.ranks
    for spans in timeline.ranks:
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(spans))


def test_transfers_delay_the_consumer_but_not_the_sender() -> None:
    timeline = played("gpipe", even(2, 0.5), [1.0] * 2)
    starts = {str(s.action): s.start_s for spans in timeline.ranks for s in spans}
    assert starts["F0.1"] == 1.0
    assert starts["F1.0"] == 1.5
    assert starts["F1.1"] == 2.5


def test_a_transfer_waits_for_its_receive_to_be_posted() -> None:
    timeline = played("gpipe", Pipe((0.1, 1.0), (1.0, 1.0), (5.0,)), [1.0] * 3)
    starts = {str(s.action): s.start_s for spans in timeline.ranks for s in spans}
    assert starts["F1.0"] == pytest.approx(5.1)
    assert starts["F1.2"] == pytest.approx(6.1 + 5.0)


def test_the_optimizer_waits_for_every_stage() -> None:
    actions = build(Layout(pp=2), 2)
    timeline = play(actions, action_cost(Pipe((1.0, 1.0), (1.0, 3.0), (0.0,)), [1.0] * 2, (0.0, 4.0), 0.5))
    steps = [spans[-1] for spans in timeline.ranks]
    assert {s.action.op for s in steps} == {Op.STEP}
    assert {s.start_s for s in steps} == {max(s.end_s for spans in timeline.ranks for s in spans[:-1])}


def test_a_schedule_that_deadlocks_is_an_error() -> None:
    one, other = Action(Op.FORWARD, 1), Action(Op.RECV_F, 1)
    with pytest.raises(ScheduleError, match=r"rank 1 waits for RF1\.0"):
        play(Schedule("broken", 1, 2, ((), (other, one))), lambda _: 1.0)


seconds = st.floats(0.1, 9.0)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 6), st.sampled_from([1, 2, 3, 7, 24, 50]), st.sampled_from(sorted(RECURRENCES)))
def test_recurrences_equal_the_timeline(data: st.DataObject, stages: int, microbatches: int, schedule: str) -> None:
    per_stage = st.lists(seconds, min_size=stages, max_size=stages)
    hops = data.draw(st.lists(st.floats(0.0, 5.0), min_size=stages - 1, max_size=stages - 1))
    pipe = Pipe(tuple(data.draw(per_stage)), tuple(data.draw(per_stage)), tuple(hops))
    part = [1.0] * (microbatches - 1) + [data.draw(st.sampled_from([1.0, 0.5]))]
    ends = RECURRENCES[schedule](pipe, part)
    assert ends == pytest.approx(played(schedule, pipe, part).compute_end_s, rel=1e-9)
    assert lower_bound_s(pipe, part) <= max(ends) * (1 + 1e-12)


@pytest.mark.parametrize("hop_s", [0.0, 0.2, 4.0])
def test_the_repeated_middle_of_a_long_1f1b_is_skipped_without_error(hop_s: float) -> None:
    pipe = Pipe((1.0, 1.3, 0.9, 1.1), (2.0, 2.1, 2.6, 2.2), (hop_s, 0.1, hop_s))
    part = [1.0] * 599 + [0.25]
    assert RECURRENCES["1f1b"](pipe, part) == pytest.approx(played("1f1b", pipe, part).compute_end_s, rel=1e-9)
