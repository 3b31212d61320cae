"""Every element of a model is held where it is needed and owned exactly once."""

import math
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rayplane.spec import sharding as module
from rayplane.spec.layout import Coord, Layout, even_boundaries
from rayplane.spec.model import ModelSpec
from rayplane.spec.sharding import Chunk, Dim, TensorSpec, chunk_of, is_shared, owned_of, tp_chunk, tp_owned


@st.composite
def cut_models(draw: st.DrawFn) -> tuple[ModelSpec, Layout]:
    """A small model, and a layout that leaves no rank without a head."""
    kv_heads, group, layers = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    tp, pp = draw(st.integers(1, min(6, kv_heads * group))), draw(st.integers(1, 4))
    flags = [draw(st.booleans()) for _ in range(3)]
    mlp, vocab = draw(st.integers(tp, 17)), draw(st.integers(tp, 17))
    model = ModelSpec(layers, 6, kv_heads * group, kv_heads, 2, mlp, vocab, tied=flags[0], qkv_bias=flags[1], qk_norm=flags[2])
    if draw(st.booleans()):
        model = replace(model, norm="layernorm", positions="learned", act="gelu", o_bias=True, mlp_bias=True)
    return model, Layout(dp=2, pp=pp, tp=tp, boundaries=even_boundaries(layers, pp))


def positions(layout: Layout) -> list[Coord]:
    return [Coord(pp=p, tp=t) for p in range(layout.pp) for t in range(layout.tp)]


@given(cut_models())
def test_owned_boxes_cover_every_tensor_exactly_once(case: tuple[ModelSpec, Layout]) -> None:
    model, layout = case
    for tensor in model.tensors():
        boxes = [b for c in positions(layout) if (b := owned_of(tensor, layout, c))]
        assert sum(b.numel for b in boxes) == tensor.numel
        assert not any(a.overlap(b) for i, a in enumerate(boxes) for b in boxes[:i])


@given(cut_models())
def test_what_a_rank_owns_it_holds(case: tuple[ModelSpec, Layout]) -> None:
    model, layout = case
    for tensor in model.tensors():
        for coord in positions(layout):
            if owned := owned_of(tensor, layout, coord):
                held = chunk_of(tensor, layout, coord)
                assert held and held.overlap(owned) == owned


@given(cut_models())
def test_replicas_hold_the_same(case: tuple[ModelSpec, Layout]) -> None:
    model, layout = case
    for tensor in model.tensors():
        for coord in positions(layout):
            other = Coord(dp=1, pp=coord.pp, tp=coord.tp)
            assert chunk_of(tensor, layout, coord) == chunk_of(tensor, layout, other)


@given(cut_models())
def test_a_rank_holds_the_kv_head_of_each_of_its_query_heads(case: tuple[ModelSpec, Layout]) -> None:
    model, layout = case
    tensors = {t.name: t for t in model.tensors()}
    for t in range(layout.tp):
        q, k = (tp_chunk(tensors[f"layers.0.{n}"], layout.tp, t) for n in ("q", "k"))
        heads = range(q.offset[0] // model.head_dim, (q.offset[0] + q.size[0]) // model.head_dim)
        kv_heads = range(k.offset[0] // model.head_dim, (k.offset[0] + k.size[0]) // model.head_dim)
        assert {h // model.group for h in heads} == set(kv_heads)


@given(cut_models())
def test_shared_tensors_are_those_that_ranks_hold_more_of_than_there_is(case: tuple[ModelSpec, Layout]) -> None:
    model, layout = case
    for tensor in (t for t in model.tensors() if any(d.cut for d in t.dims)):
        held = sum(tp_chunk(tensor, layout.tp, t).numel for t in range(layout.tp))
        assert is_shared(tensor, layout.tp) == (held > tensor.numel)


def test_table_of_the_module_holds() -> None:
    assert module.__doc__
    spans = [(int(a), int(b)) for a, b in re.findall(r"\[(\d+), (\d+)\)", module.__doc__)]
    model = ModelSpec(layers=1, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocab=256)
    tensors = {t.name: t for t in model.tensors()}
    boxes = [tp_chunk(tensors[f"layers.0.{n}"], 2, t) for n in ("q", "k") for t in range(2)]
    assert [(b.offset[0], b.offset[0] + b.size[0]) for b in boxes] == spans
    assert tp_owned(tensors["layers.0.k"], 2, 0) == Chunk((0, 0), (128, 576))
    assert tp_owned(tensors["layers.0.k"], 2, 1) == Chunk((128, 0), (64, 576))


def test_a_rank_whose_kv_heads_are_all_owned_before_it_owns_none() -> None:
    k = TensorSpec("k", (Dim("kv_heads", 1, 4, group=4), Dim("hidden", 8, cut=False)), 0, 0.02)
    assert [tp_owned(k, 4, t) for t in range(4)] == [Chunk((0, 0), (4, 8)), None, None, None]


def test_a_tied_embedding_is_held_by_the_first_and_last_stage_and_owned_by_the_first() -> None:
    model = ModelSpec(layers=3, hidden=4, heads=2, kv_heads=2, head_dim=2, mlp=4, vocab=8, tied=True)
    layout, embed = Layout(pp=3, boundaries=(1, 1, 1)), model.tensors()[0]
    assert [chunk_of(embed, layout, Coord(pp=p)) is not None for p in range(3)] == [True, False, True]
    assert [owned_of(embed, layout, Coord(pp=p)) is not None for p in range(3)] == [True, False, False]


def test_a_stage_without_layers_still_holds_head_and_norm() -> None:
    model = ModelSpec(layers=2, hidden=4, heads=2, kv_heads=2, head_dim=2, mlp=4, vocab=8)
    layout = Layout(pp=2, boundaries=(2, 0))
    held = [t.name for t in model.tensors() if chunk_of(t, layout, Coord(pp=1))]
    assert held == ["norm", "head"]


boxes = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=2, max_size=2).map(
    lambda spans: Chunk(tuple(o for o, _ in spans), tuple(n for _, n in spans))
)


def elements(box: Chunk) -> set[tuple[int, ...]]:
    (a, n), (b, m) = zip(box.offset, box.size, strict=True)
    return {(i, j) for i in range(a, a + n) for j in range(b, b + m)}


@given(boxes, boxes)
def test_overlap_is_the_common_elements(a: Chunk, b: Chunk) -> None:
    common = a.overlap(b)
    assert elements(a) & elements(b) == (elements(common) if common else set())
    assert a.numel == len(elements(a)) == math.prod(s.stop - s.start for s in a.slices)


@given(boxes, boxes)
def test_within_shifts_to_the_corner_of_the_outer_box(a: Chunk, b: Chunk) -> None:
    if common := a.overlap(b):
        inner = common.within(b)
        assert {(i + b.offset[0], j + b.offset[1]) for i, j in elements(inner)} == elements(common)
