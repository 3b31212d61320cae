"""Sums over ranks of one host: right, the same bits on all, and over when a rank dies or stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rayplane.kernels.native import load
from rayplane.kernels.program import Program
from rayplane.kernels.shared import RankLost, Shared, Sizes, create
from rayplane.model.shared import share
from rayplane.spec.layout import Layout
from rayplane.train.threads import run_ranks
from tests.model.serving import Sequences

NATIVE = load()
SIZES = Sizes(tokens=8, hidden=40, rows=2, vocab=50)
STEP = Sequences([[1] * 8], 4, 8).step([(0, 8)])
PEER = """
import sys, time, torch
from pathlib import Path
from rayplane.kernels.native import load
from rayplane.kernels.shared import Shared, Sizes
shared = Shared(Path(sys.argv[1]), 1, 2, Sizes(8, 40, 2, 50), load(), 20.0)
print("ready", flush=True)
shared.meet()
print("met", flush=True)
time.sleep(60)
"""
pytestmark = pytest.mark.skipif(NATIVE is None, reason="no C++ compiler")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("add", [False, True])
def test_ranks_sum_their_parts(ranks, add):
    def body(mesh):
        shared = share(mesh.tp, NATIVE, SIZES, 20.0)
        x, bias, ops, parts = torch.ones(8, 40), torch.full((40,), 0.5), [], []
        for _ in range(2):
            parts.append(shared.part())
            ops.append(shared.sum_into(x, bias, add))
        program = Program(ops, NATIVE, 1, [shared])
        for _ in range(50):
            for i, part in enumerate(parts):
                part.copy_(torch.full((8, 40), mesh.rank + 1.0 + i))
            program.run(STEP)
        return x

    total = ranks * (ranks + 1) / 2
    right = 1 + 50 * (2 * total + ranks + 2 * 0.5) if add else total + ranks + 0.5
    for x in run_ranks(Layout(tp=ranks), body):
        assert x.unique().tolist() == [right]


def test_one_rank_or_several_hosts_share_nothing(monkeypatch):
    assert run_ranks(Layout(), lambda mesh: share(mesh.tp, NATIVE, SIZES, 20.0)) == [None]
    hosts = iter("abc")
    monkeypatch.setattr("rayplane.model.shared._host", lambda: next(hosts))
    assert run_ranks(Layout(tp=2), lambda mesh: share(mesh.tp, NATIVE, SIZES, 20.0)) == [None, None]


@pytest.fixture
def pair():
    """(this rank's memory, the other rank's process), which have met once."""
    before = set(Path("/dev/shm").iterdir())
    path, descriptor = create(SIZES, 2)
    peer = subprocess.Popen([sys.executable, "-c", PEER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert peer.stdout.readline() == "ready\n"
        shared = Shared(path, 0, 2, SIZES, NATIVE, 3.0)
        os.close(descriptor)
        shared.meet()
        assert peer.stdout.readline() == "met\n"
        yield shared, peer
    finally:
        peer.kill()
        peer.wait()
    assert set(Path("/dev/shm").iterdir()) <= before


def test_a_dead_rank_is_seen_at_once(pair):
    shared, peer = pair
    peer.send_signal(signal.SIGKILL)  # and stays a zombie: nobody has waited for it
    begin = time.perf_counter()
    with pytest.raises(RankLost, match="tp rank 1 is dead"):
        shared.meet()
    assert time.perf_counter() - begin < 1.5
    with pytest.raises(RankLost):
        shared.meet()


def test_a_stopped_rank_is_seen_after_the_timeout(pair):
    shared, peer = pair
    peer.send_signal(signal.SIGSTOP)
    with pytest.raises(RankLost, match="tp rank 1 has not answered for 3 s"):
        shared.meet()


def test_a_program_says_which_rank_it_waited_for(pair):
    shared, peer = pair
    peer.send_signal(signal.SIGKILL)
    program = Program([shared.sum_into(torch.zeros(8, 40), None, add=False)], NATIVE, 2, [shared])
    with pytest.raises(RankLost, match="tp rank 1 is dead"):
        program.run(replace(STEP))
