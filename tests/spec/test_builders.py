"""The builders: what each lists, that it passes the check, and that the table of the module holds: memory held, idle time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.step.timeline import play
from rayplane.spec import builders as module
from rayplane.spec.builders import BUILDERS, forward_only, interleaved
from rayplane.spec.layout import split
from rayplane.spec.passes import add_communication, add_step, check
from rayplane.spec.schedule import COMPUTE, Action, Op, Schedule

KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]
stages, microbatches, kinds = st.integers(1, 6), st.integers(1, 10), st.sampled_from(KINDS)

GOLDEN = {
    ("1f1b", 2, 3, 1): """\
0  F0.0 F0.1 B0.0 F0.2 B0.1 B0.2
1  F1.0 B1.0 F1.1 B1.1 F1.2 B1.2""",
    ("gpipe", 2, 3, 1): """\
0  F0.0 F0.1 F0.2 B0.0 B0.1 B0.2
1  F1.0 F1.1 F1.2 B1.0 B1.1 B1.2""",
    ("interleaved", 2, 2, 2): """\
0  F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1
1  F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1""",
    ("interleaved", 2, 5, 2): """\
0  F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 F0.3 B2.1 F0.4 B2.2 F2.3 B0.0 F2.4 B0.1 B0.2 B2.3 B2.4 B0.3 B0.4
1  F1.0 F1.1 F1.2 F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F1.3 B1.0 F1.4 B1.1 F3.3 B1.2 F3.4 B3.3 B3.4 B1.3 B1.4""",
    ("zb-h1", 3, 4, 1): """\
0  F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3
1  F1.0 F1.1 I1.0 F1.2 I1.1 W1.0 F1.3 I1.2 W1.1 I1.3 W1.2 W1.3
2  F2.0 I2.0 F2.1 I2.1 F2.2 I2.2 W2.0 F2.3 I2.3 W2.1 W2.2 W2.3""",
    ("zbv", 2, 3, 2): """\
0  F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 F3.2 I3.2 W3.2 I0.1 W0.1 I0.2 W0.2
1  F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 F1.2 I1.0 W1.0 F2.2 I2.1 W2.1 I1.1 I2.2 I1.2 W1.1 W2.2 W1.2""",
}


def built(name: str, num_stages: int, num_microbatches: int, vpp: int) -> Schedule:
    return BUILDERS[name](num_stages, num_microbatches, vpp)


def whole_and_waiting(actions: tuple[Action, ...]) -> tuple[int, int]:
    """At most: activations whose I is to come, and those whose W is to come."""
    whole = waiting = most_whole = most_waiting = 0
    for action in actions:
        whole += (action.op is Op.FORWARD) - (action.op in (Op.BACKWARD, Op.INPUT_GRAD))
        waiting += (action.op is Op.FORWARD) - (action.op in (Op.BACKWARD, Op.WEIGHT_GRAD))
        most_whole, most_waiting = max(most_whole, whole), max(most_waiting, waiting)
    return most_whole, most_waiting


def idle(name: str, num_stages: int, num_microbatches: int, vpp: int) -> float:
    """Of a pipe where F, I and W of a stage take 1 each: its length beyond a stage's own work."""
    seconds = {Op.FORWARD: 1 / vpp, Op.BACKWARD: 2 / vpp, Op.INPUT_GRAD: 1 / vpp, Op.WEIGHT_GRAD: 1 / vpp}
    schedule = add_step(add_communication(built(name, num_stages, num_microbatches, vpp)))
    return max(play(schedule, lambda a: seconds.get(a.op, 0.0)).compute_end_s) - 3 * num_microbatches


@pytest.mark.parametrize(("name", "num_stages", "num_microbatches", "vpp"), GOLDEN)
def test_golden(name: str, num_stages: int, num_microbatches: int, vpp: int) -> None:
    assert str(built(name, num_stages, num_microbatches, vpp)) == GOLDEN[name, num_stages, num_microbatches, vpp]


@settings(deadline=None)
@given(stages, microbatches, kinds)
def test_every_builder_passes_the_check(num_stages: int, num_microbatches: int, kind: tuple[str, int]) -> None:
    schedule = built(kind[0], num_stages, num_microbatches, kind[1])
    assert schedule.num_chunks == num_stages * kind[1]
    check(add_step(add_communication(schedule)))


@settings(deadline=None)
@given(stages, microbatches, kinds)
def test_forward_only_passes_the_check_and_lies_as_the_schedule_does(
    num_stages: int, num_microbatches: int, kind: tuple[str, int]
) -> None:
    schedule = forward_only(num_stages, num_microbatches, kind[1], kind[0])
    check(add_communication(schedule), backward=False)
    assert [schedule.stage_of(c) for c in range(schedule.num_chunks)] == [
        built(kind[0], num_stages, num_microbatches, kind[1]).stage_of(c) for c in range(schedule.num_chunks)
    ]


def test_the_last_chunk_of_a_v_is_beside_the_first() -> None:
    schedule = built("zbv", 3, 2, 2)
    assert [schedule.stage_of(c) for c in range(6)] == [0, 1, 2, 2, 1, 0]


def test_the_table_names_every_builder() -> None:
    assert set(re.findall(r"^([a-z0-9-]+)  ", module.__doc__ or "", re.MULTILINE)) == set(BUILDERS)


@settings(deadline=None)
@given(stages, microbatches)
def test_1f1b_holds_at_most_as_many_activations_as_stages_follow(num_stages: int, num_microbatches: int) -> None:
    for stage, actions in enumerate(built("1f1b", num_stages, num_microbatches, 1).ranks):
        assert whole_and_waiting(actions)[0] == min(num_stages - stage, num_microbatches)


@settings(deadline=None)
@given(stages, microbatches)
def test_gpipe_holds_all_activations(num_stages: int, num_microbatches: int) -> None:
    for actions in built("gpipe", num_stages, num_microbatches, 1).ranks:
        assert whole_and_waiting(actions)[0] == num_microbatches


@settings(deadline=None)
@given(stages, microbatches, st.integers(2, 4))
def test_interleaved_holds_what_the_table_says(num_stages: int, num_microbatches: int, vpp: int) -> None:
    first_round = split(num_microbatches, max(1, num_microbatches // num_stages), 0)[1]
    for stage, actions in enumerate(interleaved(num_stages, num_microbatches, vpp).ranks):
        most = 2 * (num_stages - 1 - stage) + (vpp - 1) * first_round + 1
        assert whole_and_waiting(actions)[0] == min(most, num_microbatches * vpp)


@settings(deadline=None)
@given(stages, microbatches)
def test_zb_h1_holds_p_minus_s_whole_and_p_with_those_that_wait_for_w(num_stages: int, num_microbatches: int) -> None:
    for stage, actions in enumerate(built("zb-h1", num_stages, num_microbatches, 1).ranks):
        whole, waiting = whole_and_waiting(actions)
        assert whole == min(num_stages - stage, num_microbatches)
        assert waiting <= min(num_stages, num_microbatches)


@settings(deadline=None)
@given(stages, microbatches)
def test_zb_h2_holds_twice_as_many_whole(num_stages: int, num_microbatches: int) -> None:
    for stage, actions in enumerate(built("zb-h2", num_stages, num_microbatches, 1).ranks):
        assert whole_and_waiting(actions)[0] == min(2 * (num_stages - stage) - 1, num_microbatches)


@settings(deadline=None)
@given(stages, st.integers(0, 12))
def test_under_zb_h2_no_stage_is_idle_between_its_first_and_last_action(num_stages: int, more: int) -> None:
    """With 2 p - 1 microbatches or more; all of them wait for the last one before the optimizer's step."""
    m = 2 * num_stages - 1 + more
    schedule = add_step(add_communication(built("zb-h2", num_stages, m, 1)))
    ends = play(schedule, lambda a: 1.0 if a.op in COMPUTE else 0.0).compute_end_s
    assert ends == tuple(3.0 * m + stage for stage in range(num_stages))
    assert idle("zb-h2", num_stages, m, 1) == pytest.approx(num_stages - 1)


@settings(deadline=None)
@given(stages, microbatches)
def test_zbv_holds_at_most_2p_halves(num_stages: int, num_microbatches: int) -> None:
    for actions in built("zbv", num_stages, num_microbatches, 2).ranks:
        assert whole_and_waiting(actions)[1] <= 2 * min(num_stages, num_microbatches)


@settings(deadline=None)
@given(stages, st.integers(0, 12))
def test_idle_time_is_what_the_table_says(num_stages: int, more: int) -> None:
    p, m = num_stages, num_stages + more
    assert idle("1f1b", p, m, 1) == pytest.approx(3 * (p - 1))
    assert idle("gpipe", p, m, 1) == pytest.approx(3 * (p - 1))
    for vpp in (2, 3, 4):
        assert idle("interleaved", p, m, vpp) == pytest.approx(3 * (p - 1) / vpp)
    assert idle("zb-h1", p, m, 1) == pytest.approx(p - 1)
    assert idle("zbv", p, max(m, 2 * p - 1), 2) == pytest.approx((p - 1) / 2)
    assert idle("zbv", p, m, 2) <= idle("zb-h1", p, m, 1)


def test_idle_time_by_schedule() -> None:
    """4 stages, 8 microbatches: the order of the schedules."""
    found = {(name, vpp): idle(name, 4, 8, vpp) for name, vpp in KINDS}
    print({f"{name} vpp{vpp}": round(seconds, 2) for (name, vpp), seconds in found.items()})
    assert found["zb-h1", 1] < 0.5 * found["1f1b", 1]
    assert found["zbv", 2] < found["zb-h1", 1]
    assert found["interleaved", 2] == pytest.approx(found["1f1b", 1] / 2)


@pytest.mark.parametrize(("name", "vpp"), [("zb-h1", 1), ("zbv", 2)])
@pytest.mark.parametrize("input_s", [0.7, 1.0, 1.3])
def test_uneven_halves_of_a_backward_cost_no_time_per_microbatch(name: str, vpp: int, input_s: float) -> None:
    """A bubble at the ends and none between, also where I takes longer than F and W (Qi et al., section 2.3: (p - 1)(F + I - W))."""
    seconds = {Op.FORWARD: 1.0 / vpp, Op.INPUT_GRAD: input_s / vpp, Op.WEIGHT_GRAD: (2.0 - input_s) / vpp}
    found = []
    for num_microbatches in (7, 12, 40):
        schedule = add_step(add_communication(built(name, 4, num_microbatches, vpp)))
        found.append(max(play(schedule, lambda a: seconds.get(a.op, 0.0)).compute_end_s) - 3 * num_microbatches)
    assert found == pytest.approx([found[0]] * 3)
    if name == "zb-h1" and input_s >= 1:
        assert found[0] == pytest.approx(3 * (1 + input_s - (2.0 - input_s)))
