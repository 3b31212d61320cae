"""The cut is optimal: no other puts less on the slowest stage, and of those that put as little none is more even."""

from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.step.partition import cut

costs = st.integers(1, 9).map(float)


def loads(layer_s: list[float], extra_s: list[float], boundaries: tuple[int, ...]) -> list[float]:
    out, start = [], 0
    for count, extra in zip(boundaries, extra_s, strict=True):
        out.append(sum(layer_s[start : start + count]) + extra)
        start += count
    return out


def brute_force(layer_s: list[float], extra_s: list[float]) -> tuple[float, float]:
    """(least maximum, least sum of squares with it) over every cut."""
    best = (float("inf"), float("inf"))
    for ends in combinations_with_replacement(range(len(layer_s) + 1), len(extra_s) - 1):
        edges = (0, *ends, len(layer_s))
        found = loads(layer_s, extra_s, tuple(b - a for a, b in pairwise(edges)))
        best = min(best, (max(found), sum(x * x for x in found)))
    return best


@settings(max_examples=60, deadline=None)
@given(st.lists(costs, min_size=1, max_size=7), st.lists(st.integers(0, 6).map(float), min_size=1, max_size=4))
def test_unequal_layers_are_cut_optimally(layer_s: list[float], extra_s: list[float]) -> None:
    found = loads(layer_s, extra_s, cut(layer_s, extra_s, range(len(extra_s))))
    assert (max(found), sum(x * x for x in found)) == pytest.approx(brute_force(layer_s, extra_s))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), costs, st.lists(st.floats(0, 20), min_size=2, max_size=4))
def test_equal_layers_are_cut_optimally(num_layers: int, each_s: float, extra_s: list[float]) -> None:
    layer_s = [each_s] * num_layers
    found = loads(layer_s, extra_s, cut(layer_s, extra_s, range(len(extra_s))))
    # A stage whose own part outweighs all others sets the maximum whatever the cut; evenness decides among the rest.
    assert sum(x * x for x in found) == pytest.approx(min_squares(layer_s, extra_s))
    assert max(found) == pytest.approx(brute_force(layer_s, extra_s)[0])


def min_squares(layer_s: list[float], extra_s: list[float]) -> float:
    best = float("inf")
    for ends in combinations_with_replacement(range(len(layer_s) + 1), len(extra_s) - 1):
        edges = (0, *ends, len(layer_s))
        found = loads(layer_s, extra_s, tuple(b - a for a, b in pairwise(edges)))
        best = min(best, sum(x * x for x in found))
    return best


def test_every_layer_is_on_a_stage_and_stages_may_be_empty() -> None:
    assert cut([1.0] * 4, [0.0, 0.0, 9.0], range(3)) == (2, 2, 0)
    assert sum(cut([1.0] * 126, [0.0] * 15 + [2.0], range(16))) == 126


def test_ties_go_to_later_stages() -> None:
    assert cut([1.0] * 10, [0.0] * 4, range(4)) == (2, 2, 3, 3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.sampled_from([[0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, 2, 1, 0]]), st.data())
def test_stages_of_several_chunks_are_cut_optimally(num_layers: int, stage_of: list[int], data: st.DataObject) -> None:
    extra_s = data.draw(st.lists(st.floats(0, 4), min_size=len(stage_of), max_size=len(stage_of)))
    counts = cut([1.0] * num_layers, extra_s, stage_of)
    own = [[c for c, stage in enumerate(stage_of) if stage == s] for s in range(max(stage_of) + 1)]
    found = [sum(counts[c] + extra_s[c] for c in chunks) for chunks in own]
    assert sum(counts) == num_layers
    assert max(found) == pytest.approx(brute_force([1.0] * num_layers, [sum(extra_s[c] for c in chunks) for chunks in own])[0])
    for chunks in own:
        loads_of = [counts[c] + extra_s[c] for c in chunks]
        movable = max((load for load, c in zip(loads_of, chunks, strict=True) if counts[c]), default=0.0)
        assert movable <= min(loads_of) + 1 + 1e-9, "chunks of a stage are as even as whole layers allow"


def test_a_v_gives_the_stage_with_embedding_and_head_fewer_layers() -> None:
    assert cut([1.0] * 8, [0.1, 0.0, 0.0, 1.5], [0, 1, 1, 0]) == (2, 2, 3, 1)
