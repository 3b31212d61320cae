"""Schedules are lists that can be read, parsed, completed by passes, and checked."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.spec import schedule as module
from rayplane.spec.builders import gpipe, one_f_one_b, zb_h1
from rayplane.spec.layout import Layout
from rayplane.spec.passes import add_communication, add_step, build, build_forward, check
from rayplane.spec.schedule import Action, Op, Schedule, ScheduleError

KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]
sizes = {"num_stages": st.integers(1, 6), "num_microbatches": st.integers(1, 10), "kind": st.sampled_from(KINDS)}


def layout(num_stages: int, kind: tuple[str, int]) -> Layout:
    return Layout(pp=num_stages, schedule=kind[0], vpp=kind[1])


FULL_1F1B_2_3 = """\
0  F0.0 SF0.0 RB0.0 F0.1 SF0.1 B0.0 RB0.1 F0.2 SF0.2 RB0.2 B0.1 B0.2 R0.0 O0.0
1  RF1.0 F1.0 RF1.1 B1.0 SB1.0 F1.1 RF1.2 B1.1 SB1.1 F1.2 B1.2 SB1.2 R1.0 O1.0"""

FULL_ZB_H1_2_2 = """\
0  F0.0 SF0.0 RB0.0 F0.1 SF0.1 I0.0 RB0.1 W0.0 I0.1 W0.1 R0.0 O0.0
1  RF1.0 F1.0 RF1.1 I1.0 SB1.0 F1.1 I1.1 SB1.1 W1.0 W1.1 R1.0 O1.0"""

FULL_ZBV_2_1 = """\
0  RF3.0 F0.0 SF0.0 F3.0 I3.0 SB3.0 RB0.0 W3.0 I0.0 W0.0 R3.0 R0.0 O0.0
1  RF1.0 F1.0 RB2.0 F2.0 SF2.0 I2.0 W2.0 I1.0 SB1.0 W1.0 R2.0 R1.0 O1.0"""


def parse(text: str, num_microbatches: int = 1) -> Schedule:
    ranks = tuple(tuple(Action.parse(a) for a in line.split()[1:]) for line in text.splitlines())
    return Schedule("test", num_microbatches, len(ranks), ranks)


def moved(schedule: Schedule, rank: int, text: str, to: int) -> Schedule:
    """The schedule with one Action of a rank moved to another position."""
    action = Action.parse(text)
    actions = [a for a in schedule.ranks[rank] if a != action]
    actions.insert(to, action)
    return replace(schedule, ranks=(*schedule.ranks[:rank], tuple(actions), *schedule.ranks[rank + 1 :]))


def test_picture_of_the_module_holds() -> None:
    assert module.__doc__
    picture = "\n".join(re.findall(r"^    (\d  .+)$", module.__doc__, re.MULTILINE))
    assert picture == str(one_f_one_b(2, 3))


def test_passes_add_sends_early_receives_reduction_and_step() -> None:
    assert str(build(Layout(pp=2), 3)) == FULL_1F1B_2_3


def test_a_gradient_is_sent_before_the_weights_get_theirs() -> None:
    assert str(build(Layout(pp=2, schedule="zb-h1"), 2)) == FULL_ZB_H1_2_2


def test_chunks_on_one_stage_hand_over_without_a_message() -> None:
    assert str(build(Layout(pp=2, schedule="zbv", vpp=2), 1)) == FULL_ZBV_2_1


@settings(deadline=None)
@given(**sizes)
def test_a_schedule_is_what_it_prints(num_stages: int, num_microbatches: int, kind: tuple[str, int]) -> None:
    schedule = build(layout(num_stages, kind), num_microbatches)
    assert parse(str(schedule)).ranks == schedule.ranks


@settings(deadline=None)
@given(**sizes)
def test_a_built_schedule_ends_with_one_step_a_rank_after_every_reduction(
    num_stages: int, num_microbatches: int, kind: tuple[str, int]
) -> None:
    schedule = build(layout(num_stages, kind), num_microbatches)
    assert [[a.op for a in actions].count(Op.STEP) for actions in schedule.ranks] == [1] * num_stages
    assert all(actions[-1].op is Op.STEP for actions in schedule.ranks)
    assert sorted(a.chunk for actions in schedule.ranks for a in actions if a.op is Op.REDUCE) == list(range(num_stages * kind[1]))


@settings(deadline=None)
@given(**sizes)
def test_forward_only_has_no_backward(num_stages: int, num_microbatches: int, kind: tuple[str, int]) -> None:
    schedule = build_forward(layout(num_stages, kind), num_microbatches)
    assert {a.op for actions in schedule.ranks for a in actions} <= {Op.FORWARD, Op.SEND_F, Op.RECV_F}


@pytest.mark.parametrize("text", ["F", "F0", "F0.", "X0.0", "FS0.0", "F0.0 ", "F-1.0", ""])
def test_what_is_no_action_does_not_parse(text: str) -> None:
    with pytest.raises(ValueError, match="not an action"):
        Action.parse(text)


def test_check_finds_a_deadlock() -> None:
    schedule = add_communication(one_f_one_b(2, 1))
    with pytest.raises(ScheduleError, match=r"deadlock, rank 0 at B0\.0, rank 1 at F1\.0"):
        check(moved(schedule, 0, "SF0.0", len(schedule.ranks[0]) - 1))


def test_check_finds_a_receive_that_is_posted_after_its_use() -> None:
    with pytest.raises(ScheduleError, match="deadlock"):
        check(parse("0  F0.0 SF0.0 RB0.0 B0.0\n1  F1.0 RF1.0 B1.0 SB1.0"))


def test_check_finds_a_duplicate() -> None:
    with pytest.raises(ScheduleError, match=r"F0\.0 runs twice"):
        check(parse("0  F0.0 F0.0 B0.0"))


def test_check_finds_missing_work() -> None:
    with pytest.raises(ScheduleError, match=r"never runs I0\.1, W0\.1"):
        check(parse("0  F0.0 F0.1 B0.0", num_microbatches=2))


def test_check_finds_missing_weight_gradients() -> None:
    with pytest.raises(ScheduleError, match=r"never runs W0\.0"):
        check(parse("0  F0.0 I0.0"))


def test_check_finds_half_a_backward_that_runs_twice() -> None:
    with pytest.raises(ScheduleError, match=r"I0\.0 runs twice"):
        check(parse("0  F0.0 I0.0 I0.0 W0.0"))


@pytest.mark.parametrize(("text", "second"), [("F0.0 B0.0 I0.0", "I0.0"), ("F0.0 I0.0 B0.0", "B0.0"), ("F0.0 B0.0 W0.0", "W0.0")])
def test_check_finds_a_backward_beside_its_own_half(text: str, second: str) -> None:
    with pytest.raises(ScheduleError, match=rf"{second} runs twice"):
        check(parse(f"0  {text}"))


def test_check_finds_weight_gradients_before_those_of_the_input() -> None:
    with pytest.raises(ScheduleError, match=r"deadlock, rank 0 at W0\.0"):
        check(parse("0  F0.0 W0.0 I0.0"))


def test_check_finds_work_on_the_wrong_rank() -> None:
    with pytest.raises(ScheduleError, match=r"F1\.0 is on rank 0"):
        check(parse("0  F1.0 B0.0\n1  F0.0 B1.0"))


def test_check_finds_receives_in_another_order_than_their_sends() -> None:
    schedule = add_communication(gpipe(2, 2))
    with pytest.raises(ScheduleError, match="SF and RF do not match in number or order"):
        check(moved(schedule, 1, "RF1.1", 0))


def test_check_finds_a_send_that_nobody_receives() -> None:
    with pytest.raises(ScheduleError, match="SB and RB do not match"):
        check(parse("0  F0.0 SF0.0 B0.0\n1  RF1.0 F1.0 B1.0 SB1.0"))


def test_check_finds_a_reduction_before_the_last_backward() -> None:
    schedule = add_step(gpipe(1, 2))
    with pytest.raises(ScheduleError, match=r"rank 0 at R0\.0"):
        check(moved(schedule, 0, "R0.0", 3))


def test_check_finds_a_reduction_before_the_last_weight_gradients() -> None:
    schedule = add_step(zb_h1(1, 2))
    with pytest.raises(ScheduleError, match=r"rank 0 at R0\.0"):
        check(moved(schedule, 0, "R0.0", 5))


def test_check_finds_a_step_before_its_reduction() -> None:
    schedule = add_step(gpipe(1, 2))
    with pytest.raises(ScheduleError, match=r"rank 0 at O0\.0"):
        check(moved(schedule, 0, "O0.0", 4))
