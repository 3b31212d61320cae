"""Where to cut the model into chunks: the cut whose slowest stage is fastest, and among those the most even one.

    layers   1 1 1 1 1 1 1 1      embedding 0.1 on the first chunk, head and loss 1.5 on the last
    by count 4.1 | 5.5            by cost  5.1 | 4.5

Equal layers: one layer at a time to the stage that would stay least loaded, which is optimal since the loads are independent
and convex in the number of layers; on a stage, to the chunk that is least loaded. Ties go to what comes later in the model, whose
activations are freed sooner. Chunks may be empty.
Unequal layers: dynamic programming over best[k][j] = min over i of max(best[k-1][i], cost of layers i..j on chunk k); each chunk counts
by itself, whatever else its stage holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def cut(layer_s: Sequence[float], extra_s: Sequence[float], stage_of: Sequence[int]) -> tuple[int, ...]:
    """Layers per chunk, for the seconds of each layer, what each chunk does besides (embedding, head), and the stage it is on."""
    if len(extra_s) == 1:
        return (len(layer_s),)
    if len(set(layer_s)) == 1:
        return _fill(len(layer_s), layer_s[0], extra_s, stage_of)
    return _dynamic(np.asarray(layer_s, float), extra_s)


def _fill(num_layers: int, each_s: float, extra_s: Sequence[float], stage_of: Sequence[int]) -> tuple[int, ...]:
    num_stages = max(stage_of) + 1
    chunks = [[(extra / each_s, -c) for c, extra in enumerate(extra_s) if stage_of[c] == s] for s in range(num_stages)]
    stages = [(sum(load for load, _ in own) + 1, -s) for s, own in enumerate(chunks)]
    for heap in (stages, *chunks):
        heapq.heapify(heap)
    counts = [0] * len(extra_s)
    for _ in range(num_layers):
        stage_load, stage = stages[0]
        load, chunk = chunks[-stage][0]
        counts[-chunk] += 1
        heapq.heapreplace(stages, (stage_load + 1, stage))
        heapq.heapreplace(chunks[-stage], (load + 1, chunk))
    return tuple(counts)


def _dynamic(layer_s: Matrix, extra_s: Sequence[float]) -> tuple[int, ...]:
    """Two passes: the least possible maximum, then the least sum of squares that keeps it."""
    scale = layer_s.mean()
    ends = np.concatenate([[0.0], np.cumsum(layer_s / scale)])
    segment = np.where(np.tri(len(ends), dtype=bool).T, ends[None, :] - ends[:, None], np.inf)
    costs = [np.round(segment + extra / scale, 9) for extra in extra_s]
    slowest = costs[0][0]
    for cost in costs[1:]:
        slowest = np.maximum(slowest[:, None], cost).min(axis=0)
    squares = [np.where(cost <= slowest[-1], cost, np.inf) ** 2 for cost in costs]
    total, choices = squares[0][0], []
    for square in squares[1:]:
        candidates = np.round(total[:, None] + square, 9)
        choices.append(candidates.argmin(axis=0))
        total = candidates.min(axis=0)
    end, counts = len(layer_s), []
    for choice in reversed(choices):
        start = int(choice[end])
        counts.append(end - start)
        end = start
    return (end, *reversed(counts))
