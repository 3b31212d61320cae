"""Blended sources keep their shares over any number of samples, each in its own order, whatever the layout."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.errors import DataError
from rayplane.spec.job import DataSection
from rayplane.train import blend as blend_module
from rayplane.train.blend import MAX_PERIOD, Blend, in_parts
from rayplane.train.data import Dataset, open_dataset

weights = st.lists(st.integers(1, 60).map(lambda n: n / 20), min_size=1, max_size=9)


@settings(max_examples=80, deadline=None)
@given(weights)
def test_any_first_samples_hold_each_source_within_one_of_its_share(weights):
    blend, given = Blend.of(weights), [0] * len(weights)
    for k in range(3 * len(blend.order) + 5):
        source, number = blend[k]
        assert number == given[source]
        given[source] += 1
        assert blend.counts(k + 1) == given
        assert all(abs(g - (k + 1) * w / sum(weights)) < 1 for g, w in zip(given, weights, strict=True))


def test_example_of_the_module_holds():
    rows = {line.split()[0]: line for line in blend_module.__doc__.splitlines() if line.strip()}
    sources, numbers = ([int(n) for n in re.findall(r"\d+", rows[name].partition("...")[0])] for name in ("source", "number"))
    blend = Blend.of([0.5, 0.3, 0.2])
    assert [blend[k] for k in range(11)] == list(zip(sources, numbers, strict=True))


def test_weights_are_taken_as_they_are_written():
    assert in_parts([0.1, 0.2, 0.7]) == [1, 2, 7]
    assert in_parts([3.0, 1.0]) == [3, 1]


def test_weights_with_many_digits_are_rounded_and_none_vanishes():
    assert in_parts([1e-05, 1.0]) == [1, 65535]
    parts = in_parts([0.123456789, 0.7, 1e-9])
    assert parts[2] == 1
    assert parts[0] / sum(parts) == pytest.approx(0.123456789 / 0.823456790, abs=1 / MAX_PERIOD)


@pytest.fixture
def two(tmp_path):
    """Sources of 200 and 37 samples; a token tells its source and place."""
    np.save(tmp_path / "big.npy", np.arange(2001, dtype=np.uint16))
    np.save(tmp_path / "small.npy", np.arange(10_000, 10_371, dtype=np.uint16))
    return tmp_path


def opened(base, *paths, **fields) -> Dataset:
    section = DataSection.model_validate({"path": list(paths), "seq_len": 10, **fields})
    return open_dataset(section, base, base / "cache", 20_000)


BLENDED = ({"path": "big.npy", "weight": 0.7}, {"path": "small.npy", "weight": 0.3})


def firsts(dataset: Dataset, samples: range) -> list[int]:
    return [int(dataset.sample(k)[0]) for k in samples]


def test_each_source_goes_through_its_own_epochs(two):
    dataset = opened(two, *BLENDED)
    seen = firsts(dataset, range(1000))
    big, small = [s for s in seen if s < 10_000], [s for s in seen if s >= 10_000]
    assert (len(big), len(small)) == (700, 300)
    for found, size in ((big, 200), (small, 37)):
        epochs = [found[i : i + size] for i in range(0, len(found) - size, size)]
        assert all(sorted(e) == sorted(epochs[0]) and len(set(e)) == size for e in epochs)
        assert len({tuple(e) for e in epochs}) == len(epochs)


def test_a_sample_does_not_depend_on_who_reads_it_or_what_was_read_before(two):
    whole = firsts(opened(two, *BLENDED), range(120))
    for dp in (2, 3):
        shares = [firsts(opened(two, *BLENDED), range(60 + r * 60 // dp, 60 + (r + 1) * 60 // dp)) for r in range(dp)]
        assert whole[60:] == [s for share in shares for s in share]


def test_weights_are_part_of_the_fingerprint(two):
    other = ({"path": "big.npy", "weight": 0.6}, {"path": "small.npy", "weight": 0.3})
    assert opened(two, *BLENDED).fingerprint != opened(two, *other).fingerprint


def test_held_out_samples_are_blended_too_and_never_trained_on(two):
    dataset = opened(two, *BLENDED, holdout=0.2, holdout_samples=1000)
    held = [int(dataset.holdout(i)[0]) for i in range(dataset.num_holdout)]
    assert len(set(held)) == len(held)
    assert not set(held) & set(firsts(dataset, range(2000)))
    share = Counter(h < 10_000 for h in held)[True] / len(held)
    assert share == pytest.approx(0.7, abs=1 / len(held))


def test_paths_without_weights_are_joined(two):
    dataset = opened(two, "big.npy", {"path": "small.npy"})
    assert sorted(firsts(dataset, range(237))) == [*range(0, 2000, 10), *range(10_000, 10_370, 10)]


def test_a_source_that_is_too_small_is_named(two):
    np.save(two / "tiny.npy", np.arange(5, dtype=np.uint16))
    with pytest.raises(DataError, match=r"train.data.path: tiny.npy: too little to train on: 5 tokens"):
        opened(two, BLENDED[0], {"path": "tiny.npy", "weight": 1.0})
    np.save(two / "tiny.npy", np.arange(15, dtype=np.uint16))
    with pytest.raises(DataError, match=r"train.data.path: tiny.npy: 0.02 of 15 tokens keeps no sample aside"):
        opened(two, BLENDED[0], {"path": "tiny.npy", "weight": 1.0}, holdout=0.02)


def test_weights_on_some_paths_only_are_refused(two):
    with pytest.raises(DataError, match="give every path a weight, or none"):
        opened(two, BLENDED[0], "small.npy")
