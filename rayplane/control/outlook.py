"""What else a running job might do: the planner asked anew, with its figures corrected by what the job was seen to do.

observations ─▶ correction, paces ─▶ cheap: boundaries and microbatches under the same degrees
                                  └▶ other: the best layout for the devices that are there now, if the job leaves that open

Times are predictions at the pace of each rank. How far they are off for the layout that runs is for the policy to see (replan.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayplane.control.leeway import Leeway
from rayplane.control.state import Arrangement
from rayplane.errors import RayplaneError
from rayplane.plan.choice.lacking import lacking
from rayplane.plan.choice.place import place
from rayplane.plan.measured.correct import Job, correct, with_beliefs
from rayplane.plan.measured.pace import Paces, paces, priced
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout
from rayplane.spec.observation import Observation
from rayplane.spec.plan import Candidate
from rayplane.spec.report import COMPUTE_PHASES

TRIED = 4
"""So many layouts of the planner's list are priced at the pace of the ranks."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a step takes now, as predicted, and the arrangements that might take less, the fastest of each sort."""

    step_s: float
    cheap: Arrangement | None = None
    """Under the same degrees."""
    other: Arrangement | None = None


def flaw(seen: Observation, layout: Layout) -> str:
    """Why nothing is to be concluded from an observation; empty where something is."""
    if seen.ignored:
        return seen.ignored[0]
    if sorted(rank.rank for rank in seen.ranks) != list(range(layout.size)):
        return f"{len(seen.ranks)} of {layout.size} ranks were seen"
    if (seen.replicas, seen.stages) != (layout.dp, layout.pp):
        return f"ranks of {seen.replicas} replicas of {seen.stages} stages were seen"
    for rank in seen.ranks:
        for phase in sorted(COMPUTE_PHASES):
            value = rank.phases.get(phase, 0.0)
            if not (math.isfinite(value) and value > 0):
                return f"rank {rank.rank}: {phase} is {value:g}"
    return ""


def look(leeway: Leeway, now: Arrangement, cluster: ClusterSpec, seen: Observation) -> Outlook:
    """Ask the planner. Raises RayplaneError where the job cannot be priced on that cluster."""
    cluster = leeway.within(cluster)
    job = Job(leeway.model, leeway.workload, now.layout)
    known = with_beliefs(cluster, correct(job, cluster, [seen]).after)
    at, pricer = paces(job, known, [seen]), Pricer(leeway.model, leeway.workload, known)
    return Outlook(priced(pricer, now.layout, at).estimate.step_s, _cheap(leeway, now, pricer, at), _other(leeway, now, pricer, at))


def _cheap(leeway: Leeway, now: Arrangement, pricer: Pricer, at: Paces) -> Arrangement | None:
    """On the same devices."""
    tried = (priced(pricer, layout, at) for layout in leeway.alike(now.layout))
    best = _fastest([c for c in tried if c.layout != now.layout])
    return replace(now, layout=best.layout, step_s=best.estimate.step_s) if best else None


def _other(leeway: Leeway, now: Arrangement, pricer: Pricer, at: Paces) -> Arrangement | None:
    """On all devices that are there."""
    cluster = pricer.cluster
    if leeway.section and leeway.section.dp == now.layout.dp:
        return None
    try:
        found = leeway.best(cluster)
    except RayplaneError:
        return None
    layouts = [found.layout, *(c.layout for c in found.runners_up[:TRIED])]
    best = _fastest([_at(pricer, layout, at, leeway) for layout in layouts if _degrees(layout) != _degrees(now.layout)])
    if not best or lacking(best.layout, cluster):
        return None
    return Arrangement(best.layout, place(best.layout, cluster), best.estimate.step_s)


def _at(pricer: Pricer, layout: Layout, at: Paces, leeway: Leeway) -> Candidate:
    given = bool(leeway.section and leeway.section.boundaries)
    return priced(pricer, layout if given else layout.but(boundaries=()), at)


def _fastest(tried: Sequence[Candidate]) -> Candidate | None:
    return min((c for c in tried if c.estimate.verdict == "fits"), key=lambda c: c.estimate.step_s, default=None)


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.dp, layout.pp, layout.cp, layout.tp
