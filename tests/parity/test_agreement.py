"""What the ranks must agree on: when to drain, and that they train on the same data."""

import pytest

from rayplane.errors import DataError
from rayplane.spec.layout import Layout
from rayplane.train.threads import run_ranks
from rayplane.train.worker import _check_same_data

from .training import cut, make_rank, section, tiny

LAYOUT = cut(tiny(), Layout(dp=2, pp=2, micro_batch=4))


@pytest.mark.parametrize("asked", [{0}, {3}, {1, 2}, set()])
def test_one_rank_that_is_asked_to_drain_drains_all(asked, tmp_path):
    job = section(tmp_path)
    drained = run_ranks(LAYOUT, lambda mesh: make_rank(tiny(), job, mesh).step(drain=mesh.rank in asked)[1])
    assert drained == [bool(asked)] * 4


def test_ranks_that_see_other_data_are_named():
    fingerprints = ["00ff", "00ff", "00fe", "00ff"]
    with pytest.raises(DataError, match=r"ranks \[2\] see other data than rank 0"):
        run_ranks(LAYOUT, lambda mesh: _check_same_data(fingerprints[mesh.rank], mesh))
    run_ranks(LAYOUT, lambda mesh: _check_same_data("00ff", mesh))
