"""Where to cut the model into chunks: the cut whose slowest stage is fastest, and among those the most even one.

    layers   1 1 1 1 1 1 1 1      embedding 0.1 on the first chunk, head and loss 1.5 on the last
    by count 4.1 | 5.5            by cost  5.1 | 4.5

Equal layers: one layer at a time to the stage that would stay least loaded, which is optimal since the loads are independent
and convex in the number of layers; on a stage, to the chunk that is least loaded. Ties go to what comes later in the model, whose
activations are freed sooner. Chunks may be empty.
Unequal layers: dynamic programming over best[k][j] = min over i of max(best[k-1][i], cost of layers i..j on chunk k); each chunk counts
by itself, whatever else its stage holds.

Stages on other devices have a pace, a layer's time there as a multiple of the time given, and hold at most so many layers:

    pace 2 1, 9 equal layers    3 | 6           at most 8 and 4    5 | 4
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def cut(
    layer_s: Sequence[float], extra_s: Sequence[float], stage_of: Sequence[int], pace: Sequence[float] = (), most: Sequence[int] = ()
) -> tuple[int, ...]:
    """Layers per chunk, for the seconds of each layer, what each chunk does besides (embedding, head), and the stage it is on.

    `pace` and `most` are by stage; what `most` allows has to be enough for all layers.
    """
    if len(extra_s) == 1:
        return (len(layer_s),)
    num_stages = max(stage_of) + 1
    pace, most = pace or (1.0,) * num_stages, most or (len(layer_s),) * num_stages
    if len(set(layer_s)) == 1:
        return _fill(layer_s, extra_s, stage_of, pace, most)
    by_chunk = [(pace[s], most[s]) for s in stage_of]
    return _dynamic(np.asarray(layer_s, float), extra_s, by_chunk)


def _fill(
    layer_s: Sequence[float], extra_s: Sequence[float], stage_of: Sequence[int], pace: Sequence[float], most: Sequence[int]
) -> tuple[int, ...]:
    chunks: list[list[tuple[float, int]]] = [[] for _ in pace]
    for c, extra in enumerate(extra_s):
        chunks[stage_of[c]].append((extra / layer_s[0], -c))
    stages = [(sum(load for load, _ in own) + pace[s], -s) for s, own in enumerate(chunks) if most[s]]
    for heap in (stages, *chunks):
        heapq.heapify(heap)
    counts, left = [0] * len(extra_s), list(most)
    for _ in layer_s:
        stage_load, stage = stages[0]
        load, chunk = chunks[-stage][0]
        counts[-chunk] += 1
        left[-stage] -= 1
        if left[-stage]:
            heapq.heapreplace(stages, (stage_load + pace[-stage], stage))
        else:
            heapq.heappop(stages)
        heapq.heapreplace(chunks[-stage], (load + pace[-stage], chunk))
    return tuple(counts)


def _dynamic(layer_s: Matrix, extra_s: Sequence[float], by_chunk: Sequence[tuple[float, int]]) -> tuple[int, ...]:
    """Two passes: the least possible maximum, then the least sum of squares that keeps it."""
    scale = layer_s.mean()
    ends = np.concatenate([[0.0], np.cumsum(layer_s / scale)])
    segment = np.where(np.tri(len(ends), dtype=bool).T, ends[None, :] - ends[:, None], np.inf)
    length = np.arange(len(ends))[None, :] - np.arange(len(ends))[:, None]
    costs = [
        np.round(np.where(length <= most, pace * segment, np.inf) + extra / scale, 9)
        for extra, (pace, most) in zip(extra_s, by_chunk, strict=True)
    ]
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
