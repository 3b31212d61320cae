"""The stopwatch gives the median of each part, and calls as often as it is told."""

import time

import pytest
import torch

from rayplane.train.stopwatch import FEWEST, Stopwatch

CPU = torch.device("cpu")


def test_parts_are_told_apart():
    def body(lap):
        time.sleep(0.002)
        lap()
        time.sleep(0.02)
        lap()

    first, second = Stopwatch(CPU, 0.0).laps_s(body)
    assert 0.002 <= first < 0.02 <= second


def test_one_slow_call_does_not_count():
    naps = iter([0.0, 0.001, 0.2, 0.001, 0.001, 0.001])

    def body(lap):
        time.sleep(next(naps))
        lap()

    (median,) = Stopwatch(CPU, 0.0).laps_s(body, times=5)
    assert median < 0.1


def test_calls_take_turns_for_a_while():
    called = []
    watch = Stopwatch(CPU, 0.05)
    begin = time.perf_counter()
    watch.median_s(lambda: (called.append(0), time.sleep(0.001)), lambda: called.append(1))
    assert time.perf_counter() - begin >= 0.05
    assert called[:4] == [0, 1, 0, 1]
    assert called.count(0) == called.count(1) > FEWEST


def test_ranks_can_agree_on_how_often():
    called = []

    def body(lap):
        called.append(1)
        time.sleep(0.01)
        lap()

    watch = Stopwatch(CPU, 0.1)
    times = watch.times_for(body)
    assert FEWEST <= times <= 10
    assert len(called) == 2
    assert watch.laps_s(body, times=4) == [pytest.approx(0.01, rel=1.0)]
    assert len(called) == 2 + 1 + 4
