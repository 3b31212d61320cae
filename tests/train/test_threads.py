"""Ranks as threads of one process: what their owner hears of them."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from rayplane.spec.layout import Layout
from rayplane.train import arrays
from rayplane.train.arrays import open_array
from rayplane.train.threads import run_ranks


def test_results_come_in_the_order_of_ranks():
    def body(mesh):
        time.sleep(0.02 * (3 - mesh.rank))
        return mesh.rank

    assert run_ranks(Layout(dp=3), body) == [0, 1, 2]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_the_rank_that_failed_is_heard_and_not_those_that_lost_it(broken):
    def body(mesh):
        if mesh.rank == broken:
            raise ArithmeticError(f"rank {broken}")
        mesh.world.all_reduce(torch.ones(3))

    with pytest.raises(ArithmeticError, match=f"rank {broken}"):
        run_ranks(Layout(tp=3), body)


def test_threads_open_arrays_one_at_a_time(tmp_path, monkeypatch):
    """numpy's reading of a header breaks in CPython 3.11 when two threads are in it, rarely and as an error of the parser's."""
    np.save(tmp_path / "tokens.npy", np.arange(9))
    load, inside, most = np.load, [], []

    def watched(*args, **options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        array = load(*args, **options)
        inside.pop()
        return array

    monkeypatch.setattr(arrays.np, "load", watched)
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: open_array(tmp_path / "tokens.npy", "uint16"), range(8)))
    assert max(most) == 1
    assert all(np.array_equal(array, np.arange(9)) for array in opened)
