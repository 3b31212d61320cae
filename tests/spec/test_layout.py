"""Ranks, coordinates, peers and cuts are arithmetic."""

import doctest
import re

from hypothesis import given
from hypothesis import strategies as st

from rayplane.spec import layout as module
from rayplane.spec.layout import AXES, Coord, Layout, even_boundaries, split, unsupported

degrees = st.integers(1, 4)
layouts = st.builds(Layout, dp=degrees, pp=degrees, cp=degrees, tp=degrees, vpp=st.integers(1, 3))


def test_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(module).failed == 0


def test_picture_of_the_module_holds() -> None:
    layout = Layout(dp=2, pp=2, cp=1, tp=2)
    assert module.__doc__
    rows = re.findall(r"^    dp (\d) +(\d) +(\d) +(\d) +(\d)", module.__doc__, re.MULTILINE)
    assert len(rows) == 2
    for dp, *ranks in rows:
        drawn = [layout.coord(int(r)) for r in ranks]
        assert drawn == [Coord(int(dp), pp, 0, tp) for pp in range(2) for tp in range(2)]
    peers = re.findall(r'peers\((\d), "(\w+)"\) = \((\d), (\d)\)', module.__doc__)
    assert len(peers) == 3
    for rank, axis, first, second in peers:
        assert layout.peers(int(rank), axis) == (int(first), int(second))


@given(layouts)
def test_rank_and_coord_are_inverse(layout: Layout) -> None:
    coords = [layout.coord(r) for r in range(layout.size)]
    assert [layout.rank(c) for c in coords] == list(range(layout.size))
    assert coords == sorted(coords)


@given(layouts)
def test_peers_differ_along_one_axis_only(layout: Layout) -> None:
    for rank in range(layout.size):
        me = layout.coord(rank)
        for axis in AXES:
            peers = layout.peers(rank, axis)
            assert [getattr(layout.coord(p), axis) for p in peers] == list(range(getattr(layout, axis)))
            others = [a for a in AXES if a != axis]
            assert all(getattr(layout.coord(p), a) == getattr(me, a) for p in peers for a in others)


@given(layouts)
def test_a_tp_group_is_consecutive_ranks(layout: Layout) -> None:
    peers = layout.peers(layout.size - 1, "tp")
    assert peers == tuple(range(layout.size - layout.tp, layout.size))


@given(st.integers(0, 50), st.integers(1, 9))
def test_split_covers_everything_with_sizes_that_differ_by_one_at_most(total: int, parts: int) -> None:
    pieces = [split(total, parts, i) for i in range(parts)]
    assert [i for offset, size in pieces for i in range(offset, offset + size)] == list(range(total))
    sizes = [size for _, size in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(layouts)
def test_every_chunk_is_on_one_stage(layout: Layout) -> None:
    held = [c for s in range(layout.pp) for c in layout.chunks_of_stage(s)]
    assert sorted(held) == list(range(layout.num_chunks))
    assert all(layout.stage_of_chunk(c) == s for s in range(layout.pp) for c in layout.chunks_of_stage(s))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_boundaries_cut_the_layers_in_order(boundaries: list[int]) -> None:
    layout = Layout(pp=len(boundaries), boundaries=tuple(boundaries))
    layers = [i for c in range(layout.num_chunks) for i in layout.layers_of_chunk(c)]
    assert layers == list(range(layout.num_layers))
    assert [len(layout.layers_of_chunk(c)) for c in range(layout.num_chunks)] == boundaries


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 40))
def test_microbatches_of_all_replicas_sum_to_the_global_batch(dp: int, micro_batch: int, extra: int) -> None:
    layout, global_batch = Layout(dp=dp, micro_batch=micro_batch), dp + extra
    sizes = [layout.microbatch_sizes(global_batch, d) for d in range(dp)]
    assert sum(sum(s) for s in sizes) == global_batch
    assert all(0 < n <= micro_batch for s in sizes for n in s)
    assert layout.num_microbatches(global_batch) == max(map(len, sizes))


def test_uneven_microbatches_end_with_a_smaller_one() -> None:
    assert Layout(dp=2, micro_batch=4).microbatch_sizes(21, 0) == (4, 4, 3)
    assert Layout(dp=2, micro_batch=4).microbatch_sizes(21, 1) == (4, 4, 2)


def test_even_boundaries_give_the_remainder_to_the_first() -> None:
    assert even_boundaries(9, 4) == (3, 2, 2, 2)


def test_a_layout_prints_what_it_does() -> None:
    assert str(Layout()) == "1 device mb1"
    text = str(Layout(dp=2, pp=2, micro_batch=2, boundaries=(5, 3), zero=1, recompute="full"))
    assert text == "dp2 pp2 1f1b zero1 recompute full mb2 5+3"
    assert str(Layout(dp=4, zero=3, shard=2, recompute="selective", recompute_layers=2)) == "dp4 zero3 shard2 recompute selective 2 mb1"


def test_replicas_have_equally_many_microbatches_where_zero_has_them_meet_in_each() -> None:
    plain, cut = (Layout(dp=3, micro_batch=2, zero=zero) for zero in (1, 2))
    assert [plain.microbatch_sizes(13, d) for d in range(3)] == [(2, 2, 1), (2, 2), (2, 2)]
    assert [cut.microbatch_sizes(13, d) for d in range(3)] == [(2, 2, 1), (2, 1, 1), (2, 1, 1)]


def test_what_the_runtime_does_not_execute_is_named_by_field() -> None:
    assert unsupported(Layout(dp=2, pp=2, tp=2)) == []
    assert unsupported(Layout(cp=2, tp=2, sp=True, zero=1, recompute="full")) == []
    assert unsupported(Layout(pp=2, vpp=3, schedule="interleaved")) == []
    assert [f for f, _ in unsupported(Layout(sp=True, vpp=2, shard=2))] == ["sp", "vpp", "shard"]
    assert [f for f, _ in unsupported(Layout(dp=4, zero=2, shard=3, recompute_layers=1))] == ["shard", "recompute_layers"]
    assert unsupported(Layout(dp=3, cp=2, zero=3, shard=2, recompute="full", recompute_layers=1)) == []
    assert [f for f, _ in unsupported(Layout(pp=2, schedule="interleaved"))] == ["vpp"]
    assert [f for f, _ in unsupported(Layout(pp=2, vpp=3, schedule="zbv"))] == ["vpp"]
