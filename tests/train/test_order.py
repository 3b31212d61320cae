"""The order of samples and the choice of what is held out depend on indices and seeds alone."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.train.holdout import Holdout
from rayplane.train.order import Permutation, stable_hash, stable_hashes

sizes = st.integers(1, 700)
seeds = st.integers(-(2**63), 2**63)


@settings(max_examples=60, deadline=None)
@given(sizes, seeds, st.integers(0, 5))
def test_every_window_comes_once_per_epoch(size, seed, epoch):
    order = Permutation.keyed(size, seed, epoch)
    assert sorted(order[i] for i in range(size)) == list(range(size))


@pytest.mark.parametrize("key", [(1, 0), (0, 1)])
def test_another_seed_or_epoch_gives_another_order(key):
    ours, theirs = Permutation.keyed(1000, 0, 0), Permutation.keyed(1000, *key)
    assert sum(ours[i] == theirs[i] for i in range(1000)) < 20


def test_the_order_does_not_change_between_versions():
    order = Permutation.keyed(10, 0, 0)
    assert [order[i] for i in range(10)] == [8, 4, 6, 3, 9, 1, 0, 2, 5, 7]


def test_windows_land_anywhere_with_equal_chance():
    places = Counter(Permutation.keyed(6, seed)[0] for seed in range(6000))
    chi_square = sum((places[i] - 1000) ** 2 / 1000 for i in range(6))
    assert chi_square < 20.5  # 0.1% of fair dice exceed this at 5 degrees of freedom


def test_neighbours_do_not_stay_neighbours():
    order = Permutation.keyed(10_000, 3, 0)
    assert sum(abs(order[i] - order[i + 1]) == 1 for i in range(9_999)) < 20


def test_a_position_outside_the_epoch_is_refused():
    with pytest.raises(IndexError):
        Permutation.keyed(4, 0)[4]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([0.0, 1e-9, 0.02, 0.07, 0.1, 0.3, 0.5, 0.7, 0.95]), seeds, sizes)
def test_the_share_of_held_out_units_is_exact(share, seed, count):
    holdout = Holdout.of(share, seed)
    units = holdout.units(count).tolist()
    assert units == sorted(set(units) & set(range(count)))
    assert abs(len(units) - share * count) <= 1
    assert holdout.units(count - 1).tolist() == [u for u in units if u < count - 1]


@given(seeds, st.lists(st.integers(0, 2**62), max_size=5))
def test_many_hashes_at_once_are_those_of_one_by_one(seed, values):
    assert stable_hashes(seed, np.array(values, dtype=np.int64)).tolist() == [stable_hash(seed, v) for v in values]


def test_seeds_hold_out_different_units():
    assert len({tuple(Holdout.of(0.1, seed).units(100).tolist()) for seed in range(20)}) == 20
