"""What stages tell each other in a step: activations from chunk to chunk, and the gradients of weights that several ranks hold.

stage 0 ──▶ stage 1 ──▶ stage 2        a hop is as fast as the slowest replica's: inside an island, or across
   └─ tied embedding ──────┘           first and last stage sum its gradient
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rayplane.plan.machine.network import Group
from rayplane.plan.step.pipe import stages_of
from rayplane.plan.step.runs import Run
from rayplane.plan.step.site import Site
from rayplane.plan.step.states import GRADIENT_BYTES
from rayplane.spec.layout import Layout


def hops_s(layout: Layout, runs: Sequence[Run], sites: Sequence[Site], num_bytes: int) -> tuple[float, ...]:
    """From each chunk to the next; a way between stages that are not neighbours is as slow as the slowest hop."""
    boundary_s: list[float] = []
    for run in runs:
        if boundary_s or run.first:
            boundary_s.append(sites[-1].hop_s(num_bytes, inside=False))
        site = sites[run.pool]
        by_distance = {near: site.hop_s(num_bytes, near) for near in (True, False)}
        boundary_s += [by_distance[near] for near in site.topology.hops_inside(run.alone(layout))]
    return tuple(0.0 if a == b else _way_s(boundary_s, min(a, b), max(a, b)) for a, b in pairwise(stages_of(layout)))


def tied_s(layout: Layout, runs: Sequence[Run], sites: Sequence[Site], tied_params: int) -> float:
    """First and last stage sum their gradients of a tied embedding."""
    ends = stages_of(layout)
    if not tied_params or ends[0] == ends[-1]:
        return 0.0
    site = sites[runs[0].pool] if len(runs) == 1 else sites[-1]
    inside = len(runs) == 1 and all(site.topology.hops_inside(layout))
    return site.network.all_reduce_s(Group(2, 2 if inside else 1), GRADIENT_BYTES * tied_params)


def norms_s(layout: Layout, site: Site, params: int) -> float:
    """Under sp each tp rank has a part of the gradients of a chunk's norms."""
    return site.network.all_reduce_s(site.topology.tp_group(layout), GRADIENT_BYTES * params) if layout.sp else 0.0


def _way_s(boundary_s: Sequence[float], first: int, last: int) -> float:
    return boundary_s[first] if last == first + 1 else max(boundary_s[first:last])
