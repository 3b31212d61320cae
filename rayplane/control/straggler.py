"""Which ranks are slower than their peers: the ranks of the same stage, by what they compute for a sample, not by how long they wait.

    stage 1       rank 2: 0.10 s    rank 3: 0.31 s    rank 6: 0.11 s    rank 7: 0.10 s        forward and backward of one step
    rank 3        0.31 over the median of the others, 0.10: 3.1 times as long

A rank is slow when it is so in the median over a window of steps. Ranks without a peer have nobody to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from rayplane.spec.layout import Layout, split
from rayplane.spec.report import COMPUTE_PHASES, StepReport

WINDOW_STEPS = 10


def slow_ranks(steps: Sequence[Sequence[StepReport]], layout: Layout, global_batch: int, factor: float) -> dict[int, float]:
    """How many times as long as their peers slow ranks take, by rank; `steps` are the reports of all ranks, step by step."""
    if len(steps) < WINDOW_STEPS:
        return {}
    ratios: dict[int, list[float]] = {}
    for reports in steps[-WINDOW_STEPS:]:
        seconds: list[dict[int, float]] = [{} for _ in range(layout.pp)]
        for r in reports:
            seconds[r.stage][r.rank] = _compute_s(r, layout, global_batch)
        for of_stage in seconds:
            for rank, ratio in _ratios(of_stage).items():
                ratios.setdefault(rank, []).append(ratio)
    found = {rank: median(of) for rank, of in ratios.items() if len(of) == WINDOW_STEPS}
    return {rank: ratio for rank, ratio in found.items() if ratio >= factor}


def _compute_s(report: StepReport, layout: Layout, global_batch: int) -> float:
    """For one sample of its replica."""
    return sum(report.phases.get(phase, 0.0) for phase in COMPUTE_PHASES) / split(global_batch, layout.dp, report.replica)[1]


def _ratios(seconds: Mapping[int, float]) -> dict[int, float]:
    """Of each rank, against the median of the others; one whose time is no number is nobody's peer."""
    ranks = sorted((rank for rank, s in seconds.items() if math.isfinite(s)), key=lambda rank: seconds[rank])
    out = {}
    for place, rank in enumerate(ranks if len(ranks) > 1 else ()):
        usual_s = median(seconds[ranks[k]] for k in _middle(len(ranks), place))
        if usual_s > 0:
            out[rank] = seconds[rank] / usual_s
    return out


def _middle(size: int, without: int) -> set[int]:
    """Places of the one or two in the middle of `size` sorted ones, when one is left out."""
    middle = {(size - 2) // 2, (size - 1) // 2}
    return {k if k < without else k + 1 for k in middle}
