"""What degrees promise before any of their layouts is looked at closely.

floor_s       no layout of these degrees can take less: the layers' compute and tp at their cheapest micro_batch, shared evenly
promise_s     a guess by one layout for each micro_batch, with its pipe's bubble; it decides what is tried first, not what is best
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rayplane.plan.choice.candidates import MAX_VPP, Space, micro_batches
from rayplane.plan.step.train import Pricer
from rayplane.spec.layout import Layout, split

AGAIN = 4 / 3
"""With whole layers computed again, to a step without."""


Floor = Callable[[int, bool], float]
"""(micro_batch, sp) -> seconds that no step of some degrees is shorter than."""


def floors(pricer: Pricer, space: Space, degrees: Layout) -> Floor:
    """By micro_batch and sp: the layers' compute and tp, shared evenly."""
    samples, runs = split(space.workload.global_batch, degrees.dp, 0)[1], pricer.fleet.runs(degrees)
    known: dict[tuple[int, bool], float] = {}

    def floor(micro_batch: int, sp: bool) -> float:
        if (micro_batch, sp) not in known:
            pace = sum(run.stages * micro_batch / _layer_s(pricer, degrees, micro_batch, sp, run.first) for run in runs)
            known[micro_batch, sp] = samples * space.model.layers / pace
        return known[micro_batch, sp]

    return floor


def floor_s(pricer: Pricer, space: Space, degrees: Layout) -> float:
    """Seconds that no step of these degrees is shorter than."""
    samples = split(space.workload.global_batch, degrees.dp, 0)[1]
    floor = floors(pricer, space, degrees)
    return min(floor(n, sp) for n in micro_batches(samples) for sp in {False, degrees.tp > 1})


def promise_s(pricer: Pricer, space: Space, degrees: Layout) -> float:
    """About what a step of the best layout of these degrees takes, if memory allows for it."""
    samples = split(space.workload.global_batch, degrees.dp, 0)[1]
    vpp = max(1, min(MAX_VPP, space.model.layers // degrees.pp)) if degrees.pp > 1 else 1
    run = ("interleaved", vpp) if vpp > 1 else ("1f1b", 1)
    return min(_guess_s(pricer, space, degrees, n, run) for n in micro_batches(samples) if n <= 8)


def _guess_s(pricer: Pricer, space: Space, degrees: Layout, micro_batch: int, run: tuple[str, int]) -> float:
    schedule, vpp = run
    zero = int(degrees.dp * degrees.cp > 1)
    layout = Layout(
        *(degrees.dp, degrees.pp, degrees.cp, degrees.tp),
        sp=degrees.tp > 1,
        schedule=schedule,
        vpp=vpp,
        micro_batch=micro_batch,
        zero=zero,
    )
    outline = pricer.outline(layout)
    room = outline.memory_bytes / pricer.device_bytes
    bubble = (degrees.pp - 1) / vpp / len(outline.samples)
    return pricer.at_least_s(outline) * (1 + bubble) * (1 if room <= 1 else AGAIN * math.ceil(room))


def _layer_s(pricer: Pricer, degrees: Layout, micro_batch: int, sp: bool, stage: int) -> float:
    """Of a microbatch on a stage, forward and backward, where nothing is computed again."""
    layout = Layout(degrees.dp, degrees.pp, degrees.cp, degrees.tp, sp=sp, micro_batch=micro_batch)
    return pricer.microbatch(layout, stage)[1].layer.total_s
