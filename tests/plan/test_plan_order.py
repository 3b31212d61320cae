"""Playing without spans: orders and recurrences equal the timeline, long pipes are told from short ones, bounds are bounds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.step.draft import SPLIT, action_cost
from rayplane.plan.step.held import fullest, most_bytes
from rayplane.plan.step.order import Order, Orders
from rayplane.plan.step.pipe import Pipe, chunks_of_stages, lower_bound_s, stages_of
from rayplane.plan.step.programs import CHUNK, PROGRAMS, Shape
from rayplane.plan.step.programs import KINDS as OPS
from rayplane.plan.step.recurrence import RECURRENCES
from rayplane.plan.step.timeline import Timeline, play
from rayplane.spec.builders import BUILDERS, one_f_one_b
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build

KINDS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]
seconds = st.floats(0.1, 9.0)


def layout(num_stages: int, kind: tuple[str, int]) -> Layout:
    return Layout(pp=num_stages, schedule=kind[0], vpp=kind[1])


def a_pipe(data: Any, of: Layout, reduce: bool = False) -> Pipe:
    chunks = of.num_chunks
    per_chunk = st.lists(seconds, min_size=chunks, max_size=chunks).map(tuple)
    hops = data.draw(st.lists(st.floats(0.0, 5.0), min_size=chunks - 1, max_size=chunks - 1))
    reduce_s = data.draw(per_chunk) if reduce else (0.0,) * chunks
    stage_of = stages_of(of)
    hops = [0.0 if stage_of[c] == stage_of[c + 1] else hop for c, hop in enumerate(hops)]
    return Pipe(stage_of, data.draw(per_chunk), data.draw(per_chunk), data.draw(per_chunk), tuple(hops), reduce_s)


def played(of: Layout, pipe: Pipe, part: list[float]) -> Timeline:
    return play(build(of, len(part)), action_cost(pipe, part, 0.0))


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.sampled_from(KINDS))
def test_an_order_ends_when_the_timeline_does(data: Any, num_stages: int, microbatches: int, kind: tuple[str, int]) -> None:
    of = layout(num_stages, kind)
    pipe = a_pipe(data, of, reduce=True)
    part = [1.0] * (microbatches - 1) + [data.draw(st.sampled_from([1.0, 0.5]))]
    orders = Orders()
    ends = orders.ends(of, pipe, part)
    timeline = played(of, pipe, part)
    assert ends == pytest.approx([spans[-1].start_s if len(spans) == 1 else spans[-2].end_s for spans in timeline.ranks], rel=1e-9)
    alone = orders.ends(of, replace(pipe, reduce_s=(0.0,) * of.num_chunks), part)
    assert alone == pytest.approx(timeline.compute_end_s, rel=1e-9), "without its reductions the same pipe is not played again"


@settings(max_examples=120, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 12), st.sampled_from(KINDS))
def test_nothing_ends_before_its_lower_bound(data: Any, num_stages: int, microbatches: int, kind: tuple[str, int]) -> None:
    of = layout(num_stages, kind)
    pipe = a_pipe(data, of)
    part = [1.0] * (microbatches - 1) + [data.draw(st.sampled_from([1.0, 0.5]))]
    assert lower_bound_s(pipe, part, kind[0] in SPLIT) <= max(played(of, pipe, part).compute_end_s) * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_of_an_even_pipe_is_near_its_end(kind: tuple[str, int]) -> None:
    of = layout(4, kind)
    each = (1 / of.vpp,) * of.num_chunks
    pipe = Pipe(stages_of(of), each, each, each, (0.0,) * (of.num_chunks - 1), (0.0,) * of.num_chunks)
    end_s, bound_s = max(played(of, pipe, [1.0] * 16).compute_end_s), lower_bound_s(pipe, [1.0] * 16, kind[0] in SPLIT)
    assert end_s <= bound_s * (1.16 if kind[0] == "gpipe" else 1.02)


@pytest.mark.parametrize("kind", [k for k in KINDS if k[0] not in RECURRENCES])
@pytest.mark.parametrize("hop_s", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("halves_s", [(1.0, 1.0), (1.4, 0.6)])
@pytest.mark.parametrize("microbatches", [53, 96, 200])
def test_what_a_long_pipe_repeats_is_skipped_without_error(
    kind: tuple[str, int], hop_s: float, halves_s: tuple[float, float], microbatches: int
) -> None:
    of = layout(4, kind)
    chunks, stage_of = of.num_chunks, stages_of(of)
    forward = tuple(1 / of.vpp + 0.2 * (c == chunks - 1) for c in range(chunks))
    hops = tuple(0.0 if stage_of[c] == stage_of[c + 1] else hop_s for c in range(chunks - 1))
    input_s, weight_s = ((s / of.vpp,) * chunks for s in halves_s)
    pipe = Pipe(stage_of, forward, input_s, weight_s, hops, (0.0,) * chunks)
    part = [1.0] * (microbatches - 1) + [0.5]
    order = Order(kind[0], Shape(4, microbatches, kind[1]))
    assert order.ends(pipe, part) == pytest.approx(played(of, pipe, part).compute_end_s, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 6), st.sampled_from([1, 2, 3, 7, 24, 50]), st.sampled_from(sorted(RECURRENCES)))
def test_recurrences_equal_the_timeline(data: Any, num_stages: int, microbatches: int, schedule: str) -> None:
    of = layout(num_stages, (schedule, 1))
    pipe = a_pipe(data, of)
    part = [1.0] * (microbatches - 1) + [data.draw(st.sampled_from([1.0, 0.5]))]
    assert RECURRENCES[schedule](pipe, part) == pytest.approx(played(of, pipe, part).compute_end_s, rel=1e-9)


@pytest.mark.parametrize("hop_s", [0.0, 0.2, 4.0])
def test_the_repeated_middle_of_a_long_1f1b_is_skipped_without_error(hop_s: float) -> None:
    backward = (1.0, 1.05, 1.3, 1.1)
    pipe = Pipe((0, 1, 2, 3), (1.0, 1.3, 0.9, 1.1), backward, backward, (hop_s, 0.1, hop_s), (0.0,) * 4)
    part = [1.0] * 599 + [0.25]
    assert RECURRENCES["1f1b"](pipe, part) == pytest.approx(played(Layout(pp=4), pipe, part).compute_end_s, rel=1e-9)


def test_the_fullest_moments_are_counted_from_the_actions() -> None:
    assert fullest(one_f_one_b(3, 5)) == (((3, 0),), ((2, 0),), ((1, 0),))
    zb = fullest(BUILDERS["zb-h1"](3, 6, 1))
    assert [max(whole for whole, _ in moments) for moments in zb] == [3, 2, 1]
    assert [most_bytes(moments, (1,), (1,)) for moments in zb] == [3, 3, 3]
    assert most_bytes(zb[2], (10,), (1,)) == 12, "one whole and two that wait for their weight gradients"
    assert all(len(held) == 4 for moments in fullest(BUILDERS["zbv"](3, 6, 2)) for held in moments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 5, 11])
def test_programs_are_the_actions_of_the_builders(kind: tuple[str, int], num_stages: int, microbatches: int) -> None:
    name, vpp = kind
    assert set(PROGRAMS) == set(BUILDERS)
    schedule, of = BUILDERS[name](num_stages, microbatches, vpp), layout(num_stages, kind)
    order = Order(name, Shape(num_stages, microbatches, vpp))
    for stage, (actions, chunks) in enumerate(zip(schedule.ranks, chunks_of_stages(of), strict=True)):
        assert order.program(stage) == bytes(CHUNK * chunks.index(a.chunk) + OPS.index(a.op) for a in actions)
        for op, chunk in {(a.op, a.chunk) for a in actions}:
            assert [a.microbatch for a in actions if (a.op, a.chunk) == (op, chunk)] == list(range(microbatches))
    assert [[tuple(moment) for moment in moments.tolist()] for moments in order.held] == [list(m) for m in fullest(schedule)]
