"""A layout that the job gives: the degrees stand; micro_batch and boundaries are filled in where they are left out.

layout: {dp: 2, pp: 2, tp: 2} on 4 devices
layout: dp 2 x pp 2 x tp 2 needs 8 devices, the cluster has 4; nearest possible: dp 2, pp 2, tp 1
"""

from __future__ import annotations

import math
from dataclasses import replace

from rayplane.errors import Problem, SpecError
from rayplane.plan.choice.candidates import Ladder, Space, impossible, micro_batches, unequal
from rayplane.plan.step.programs import MOST_CHUNKS
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout, split, unsupported


def layouts(space: Space, section: LayoutSection) -> Ladder:
    """The layouts a section leaves open. Raises SpecError with every contradiction and the nearest layout that is possible."""
    given = section.layout(1)
    problems = [Problem(reason, f"layout.{field}") for field, reason in unsupported(given)]
    if given.vpp > MOST_CHUNKS:
        problems.append(Problem(f"{given.vpp} chunks a stage are more than {MOST_CHUNKS}, the most there can be", "layout.vpp"))
    problems += _degrees(space, given)
    samples = split(space.workload.global_batch, min(given.dp, space.workload.global_batch), 0)[1]
    if section.micro_batch and section.micro_batch > samples:
        message = f"{section.micro_batch} is more than the {samples} samples of a replica; nearest possible: {samples}"
        problems.append(Problem(message, "layout.micro_batch"))
    problems += _boundaries(space, given)
    if problems:
        raise SpecError(problems)
    sizes = [section.micro_batch] if section.micro_batch else micro_batches(samples)
    ladder = [replace(given, micro_batch=n) for n in sizes]
    faults = [unequal(layout, space.workload.global_batch) for layout in ladder]
    if all(faults):
        raise SpecError(Problem(f"{faults[0]}; use micro_batch: 2 or more, or zero: 1", "layout.zero"))
    return [layout for layout, fault in zip(ladder, faults, strict=True) if not fault]


def as_given(layout: Layout) -> list[Layout]:
    """What to try where a given layout is too large: nothing else was asked for."""
    return []


def nearest(space: Space, wanted: Layout) -> Layout | None:
    """The possible degrees whose ratios to the wanted ones are smallest, none of them larger."""
    limits = (space.workload.global_batch, space.model.layers, space.max_tp)
    axes = [_steps(degree, limit) for degree, limit in zip((wanted.dp, wanted.pp, wanted.tp), limits, strict=True)]
    possible = [Layout(dp=dp, pp=pp, tp=tp) for dp in axes[0] for pp in axes[1] for tp in axes[2] if dp * pp * tp <= space.num_devices]
    return min(possible, key=lambda x: (distance(x, wanted), -x.size, -x.dp, -x.pp), default=None)


def degrees(layout: Layout) -> str:
    """As a user writes them."""
    return f"dp {layout.dp}, pp {layout.pp}, tp {layout.tp}"


def _degrees(space: Space, given: Layout) -> list[Problem]:
    reason = impossible(space, given)
    if not reason and given.size > space.num_devices:
        axes = " x ".join(f"{axis} {getattr(given, axis)}" for axis in ("dp", "pp", "cp", "tp") if getattr(given, axis) > 1)
        reason = f"{axes} needs {given.size} devices, the cluster has {space.num_devices}"
    if not reason:
        return []
    near = nearest(space, given)
    return [Problem(f"{reason}; nearest possible: {degrees(near)}" if near else reason, "layout")]


def _boundaries(space: Space, given: Layout) -> list[Problem]:
    cut, layers = given.boundaries, space.model.layers
    if not cut:
        return []
    if len(cut) != given.num_chunks:
        message = f"{len(cut)} numbers for {given.num_chunks} stages; give one per stage, or leave it out to have it cut by cost"
        return [Problem(message, "layout.boundaries")]
    if sum(cut) != layers:
        message = f"they sum to {sum(cut)}, the model has {layers} layers; leave it out to have it cut by cost"
        return [Problem(message, "layout.boundaries")]
    return []


def _steps(degree: int, limit: int) -> list[int]:
    """Smaller degrees worth offering: the whole parts of `degree` over 1, 2, 3, …, and the limit itself."""
    return sorted({n for n in (min(degree, limit), *(degree // k for k in range(1, degree + 1))) if n <= limit})


def distance(layout: Layout, wanted: Layout) -> float:
    """How far two layouts are apart: powers of two between their degrees."""
    pairs = ((layout.dp, wanted.dp), (layout.pp, wanted.pp), (layout.tp, wanted.tp))
    return round(sum(abs(math.log2(a / b)) for a, b in pairs), 6)
