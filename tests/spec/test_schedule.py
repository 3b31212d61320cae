"""Schedules are lists that can be read, parsed, checked and played."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayplane.spec import schedule as module
from rayplane.spec.layout import Layout
from rayplane.spec.schedule import (
    BUILDERS,
    Action,
    Op,
    Schedule,
    ScheduleError,
    add_communication,
    add_step,
    build,
    build_forward,
    check,
    gpipe,
    one_f_one_b,
)

sizes = {"num_stages": st.integers(1, 6), "num_microbatches": st.integers(1, 9), "name": st.sampled_from(sorted(BUILDERS))}

GPIPE_2_3 = """\
0  F0.0 F0.1 F0.2 B0.0 B0.1 B0.2
1  F1.0 F1.1 F1.2 B1.0 B1.1 B1.2"""

FULL_1F1B_2_3 = """\
0  F0.0 SF0.0 RB0.0 F0.1 SF0.1 B0.0 RB0.1 F0.2 SF0.2 RB0.2 B0.1 B0.2 R0.0 O0.0
1  RF1.0 F1.0 RF1.1 B1.0 SB1.0 F1.1 RF1.2 B1.1 SB1.1 F1.2 B1.2 SB1.2 R1.0 O1.0"""


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


def test_gpipe_runs_all_forwards_first() -> None:
    assert str(gpipe(2, 3)) == GPIPE_2_3


def test_passes_add_sends_early_receives_reduction_and_step() -> None:
    assert str(build(Layout(pp=2), 3)) == FULL_1F1B_2_3


@given(**sizes)
def test_built_schedules_pass_the_check(num_stages: int, num_microbatches: int, name: str) -> None:
    schedule = build(Layout(pp=num_stages, schedule=name), num_microbatches)
    compute = [a for actions in schedule.ranks for a in actions if a.op in (Op.FORWARD, Op.BACKWARD)]
    assert len(compute) == 2 * num_stages * num_microbatches
    assert all(actions[-1].op is Op.STEP for actions in schedule.ranks)


@given(**sizes)
def test_a_schedule_is_what_it_prints(num_stages: int, num_microbatches: int, name: str) -> None:
    schedule = build(Layout(pp=num_stages, schedule=name), num_microbatches)
    assert parse(str(schedule)).ranks == schedule.ranks


@given(num_stages=st.integers(1, 6), num_microbatches=st.integers(1, 9))
def test_1f1b_holds_at_most_as_many_activations_as_stages_follow(num_stages: int, num_microbatches: int) -> None:
    for stage, actions in enumerate(one_f_one_b(num_stages, num_microbatches).ranks):
        held = most = 0
        for action in actions:
            held += 1 if action.op is Op.FORWARD else -1
            most = max(most, held)
        assert most == min(num_stages - stage, num_microbatches)


@given(num_stages=st.integers(1, 6), num_microbatches=st.integers(1, 9))
def test_forward_only_has_no_backward(num_stages: int, num_microbatches: int) -> None:
    schedule = build_forward(Layout(pp=num_stages), num_microbatches)
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
    with pytest.raises(ScheduleError, match=r"never runs B0\.1"):
        check(parse("0  F0.0 F0.1 B0.0", num_microbatches=2))


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


def test_check_finds_a_step_before_its_reduction() -> None:
    schedule = add_step(gpipe(1, 2))
    with pytest.raises(ScheduleError, match=r"rank 0 at O0\.0"):
        check(moved(schedule, 0, "O0.0", 4))
