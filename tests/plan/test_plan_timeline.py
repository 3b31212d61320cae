"""The simulated step: bubbles by the book, no deadlock, transfers beside compute, gradients of weights that wait for nothing."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from rayplane.plan.step.draft import action_cost
from rayplane.plan.step.pipe import Pipe
from rayplane.plan.step.timeline import Timeline, play
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build
from rayplane.spec.schedule import Action, Op, Schedule, ScheduleError

KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]


def stages(forward_s: Sequence[float], backward_s: Sequence[float], p2p_s: Sequence[float], reduce_s: Sequence[float] = ()) -> Pipe:
    """One chunk a stage; the halves of a backward are equal."""
    half_s = tuple(b / 2 for b in backward_s)
    stage_of = tuple(range(len(forward_s)))
    return Pipe(stage_of, tuple(forward_s), half_s, half_s, tuple(p2p_s), tuple(reduce_s) or (0.0,) * len(forward_s))


def played(layout: Layout, pipe: Pipe, part: list[float]) -> Timeline:
    return play(build(layout, len(part)), action_cost(pipe, part, 0.0))


def even(num_stages: int, p2p_s: float = 0.0) -> Pipe:
    return stages((1.0,) * num_stages, (2.0,) * num_stages, (p2p_s,) * (num_stages - 1))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 5, 16])
def test_bubble_is_p_minus_1_over_m_plus_p_minus_1(schedule: str, num_stages: int, microbatches: int) -> None:
    timeline = played(Layout(pp=num_stages, schedule=schedule), even(num_stages), [1.0] * microbatches)
    assert timeline.bubble == pytest.approx((num_stages - 1) / (microbatches + num_stages - 1))
    assert timeline.end_s == pytest.approx(3.0 * (microbatches + num_stages - 1))


@pytest.mark.parametrize(("schedule", "vpp"), KINDS)
def test_every_action_is_played_once_and_in_order(schedule: str, vpp: int) -> None:
    layout = Layout(pp=4, schedule=schedule, vpp=vpp)
    chunks = layout.num_chunks
    third = (1 / 3,) * chunks
    pipe = Pipe(tuple(layout.stage_of_chunk(c) for c in range(chunks)), third, third, third, (0.3,) * (chunks - 1), (0.5,) * chunks)
    actions = build(layout, 6)
    timeline = play(actions, action_cost(pipe, [1.0] * 6, 0.25))
    assert tuple(tuple(s.action for s in spans) for spans in timeline.ranks) == actions.ranks
    for spans in timeline.ranks:
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(spans))


def test_transfers_delay_the_consumer_but_not_the_sender() -> None:
    timeline = played(Layout(pp=2, schedule="gpipe"), even(2, 0.5), [1.0] * 2)
    starts = {str(s.action): s.start_s for spans in timeline.ranks for s in spans}
    assert starts["F0.1"] == 1.0
    assert starts["F1.0"] == 1.5
    assert starts["F1.1"] == 2.5


def test_a_transfer_waits_for_its_receive_to_be_posted() -> None:
    timeline = played(Layout(pp=2, schedule="gpipe"), stages((0.1, 1.0), (1.0, 1.0), (5.0,)), [1.0] * 3)
    starts = {str(s.action): s.start_s for spans in timeline.ranks for s in spans}
    assert starts["F1.0"] == pytest.approx(5.1)
    assert starts["F1.2"] == pytest.approx(6.1 + 5.0)


def test_weight_gradients_wait_for_no_message() -> None:
    timeline = played(Layout(pp=2, schedule="zb-h1"), even(2, 3.0), [1.0] * 2)
    for spans in timeline.ranks:
        for before, span in pairwise(s for s in spans if s.action.op in (Op.INPUT_GRAD, Op.WEIGHT_GRAD)):
            if span.action.op is Op.WEIGHT_GRAD:
                assert span.start_s == before.end_s


def test_the_optimizer_waits_for_every_stage() -> None:
    actions = build(Layout(pp=2), 2)
    timeline = play(actions, action_cost(stages((1.0, 1.0), (1.0, 3.0), (0.0,), (0.0, 4.0)), [1.0] * 2, 0.5))
    steps = [spans[-1] for spans in timeline.ranks]
    assert {s.action.op for s in steps} == {Op.STEP}
    assert {s.start_s for s in steps} == {max(s.end_s for spans in timeline.ranks for s in spans[:-1])}


def test_a_schedule_that_deadlocks_is_an_error() -> None:
    one, other = Action(Op.FORWARD, 1), Action(Op.RECV_F, 1)
    with pytest.raises(ScheduleError, match=r"rank 1 waits for RF1\.0"):
        play(Schedule("broken", 1, 2, ((), (other, one))), lambda _: 1.0)
