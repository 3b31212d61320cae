"""Over cp every token is kept once, every query meets every key before it once, and rows of logits come back in order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.model.striping import Striping
from tests.model.serving import Sequences

BLOCKS = 40


@st.composite
def striped_steps(draw):
    """(block, cp, window, whole step, the step of each rank)."""
    block, cp, window = draw(st.integers(1, 4)), draw(st.integers(2, 4)), draw(st.sampled_from([0, 1, 5]))
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    sequences = Sequences([list(range(n)) for n in lengths], block * cp, BLOCKS * 2)
    sequences.known = [draw(st.integers(0, n - 1)) for n in lengths]
    work = [(i, draw(st.integers(1, n - sequences.known[i]))) for i, n in enumerate(lengths)]
    step = sequences.step(work, all_rows=draw(st.booleans()))
    return block, cp, window, step, [Striping(block, cp, rank).part(step, window) for rank in range(cp)]


def test_the_picture_of_the_docstring():
    positions = np.arange(8)
    assert Striping(2, 2, 0).owners(positions).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    for rank, places in ((0, {0: 0, 1: 1, 4: 2, 5: 3}), (1, {2: 0, 3: 1, 6: 2, 7: 3})):
        striping = Striping(2, 2, rank)
        assert {p: striping.num_kept(np.array([p])).item() for p in places} == places
        # Blocks 0 and 1 of the scheduler, one behind the other.
        assert {p: striping.slots(np.array([p])).item() for p in places} == places


@settings(max_examples=150, deadline=None)
@given(striped_steps())
def test_every_token_is_on_one_rank_where_the_table_says(drawn):
    block, cp, _, step, parts = drawn
    assert sum(len(part.tokens) for part in parts) == len(step.tokens)
    queries = torch.cat([part.positions for part in parts])
    for rank, part in enumerate(parts):
        stripes = part.stripes
        assert stripes.counts == tuple(len(p.tokens) for p in parts)
        assert stripes.first == sum(stripes.counts[:rank])
        assert torch.equal(queries[stripes.first :][: len(part.tokens)], part.positions)
        first = sum(stripes.pieces[:rank])
        for n in range(first, first + stripes.pieces[rank]):  # this rank's own queries: their keys lie at their slots
            for i in range(part.starts[n], part.starts[n + 1]):
                place = stripes.keys[1, i].item() - 1
                own = i - stripes.first
                assert part.slots[own] == part.tables[n, place // block] * block + place % block
                assert part.positions[own] % (block * cp) // block == rank


@settings(max_examples=150, deadline=None)
@given(striped_steps())
def test_every_key_before_a_query_is_met_on_one_rank(drawn):
    block, cp, window, _, parts = drawn
    queries = torch.cat([part.positions for part in parts]).tolist()
    for i, position in enumerate(queries):
        met = []
        for rank, part in enumerate(parts):
            kept = [p for p in range(position + 1) if p % (block * cp) // block == rank]
            low, high = part.stripes.keys[:, i].tolist()
            met += kept[low:high]
            piece = int(torch.searchsorted(part.starts, i, right=True)) - 1
            assert high <= part.lengths[piece]
        assert sorted(met) == list(range(max(0, position + 1 - window) if window else 0, position + 1))


@settings(max_examples=100, deadline=None)
@given(striped_steps(), st.integers(0, 3))
def test_rows_come_back_in_the_order_of_the_step(drawn, spare):
    _, _, _, step, parts = drawn
    of_ranks = [part.tokens[part.rows] for part in parts]
    apart = max(map(len, of_ranks)) + spare
    side_by_side = torch.cat([torch.cat((rows, rows.new_full((apart - len(rows),), -1))) for rows in of_ranks])
    for part in parts:
        assert part.stripes.row_counts == list(map(len, of_ranks))
        assert torch.equal(torch.cat(of_ranks)[part.stripes.row_places()], step.tokens[step.rows])
        assert torch.equal(side_by_side[part.stripes.row_places(apart)], step.tokens[step.rows])


@pytest.mark.parametrize("cp", [2, 4])
def test_causal_work_is_even(cp):
    step = Sequences([[0] * 512], 4 * cp, 512).step([(0, 512)])
    work = [int(Striping(4, cp, rank).part(step, 0).stripes.keys[1].sum()) for rank in range(cp)]
    assert max(work) < 1.05 * min(work)
