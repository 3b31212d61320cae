"""How much slower than planned each rank computes, and what that makes of any layout: stages are cut and priced at their pace.

pace of a rank = seconds it was seen to compute / seconds predicted for its stage, once the prediction is corrected (`correct`)

    ranks      0     1     2     3        layout pp2 dp2, stage 1 on ranks 1 and 3
    pace       1.0   3.0   1.0   1.1      stage 0: 1.0   stage 1: 3.0    a stage goes at the pace of its slowest rank

A rank of another layout is taken to be on the device of the rank that has its number now: both lie in topology order. What nobody has
been seen on counts as planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rayplane.plan.measured.correct import Job, phases_of
from rayplane.plan.step.boundaries import cut_at_pace
from rayplane.plan.step.compute import NONE, Seconds
from rayplane.plan.step.draft import Draft
from rayplane.plan.step.memory import verdict
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Coord, Layout, split
from rayplane.spec.observation import Observation
from rayplane.spec.plan import Candidate
from rayplane.spec.report import COMPUTE_PHASES


@dataclass(frozen=True, slots=True)
class Paces:
    """By rank of the layout under which they were seen."""

    ranks: tuple[float, ...] = ()

    def of_stages(self, layout: Layout) -> tuple[float, ...]:
        """Of each stage of a layout."""
        return tuple(max(self._at(r) for r in _ranks_of(layout, stage)) for stage in range(layout.pp))

    def _at(self, rank: int) -> float:
        return self.ranks[rank] if rank < len(self.ranks) else 1.0


def paces(job: Job, corrected: ClusterSpec, windows: Sequence[Observation]) -> Paces:
    """What some windows of a job's steps show; a replica with fewer samples is expected to take less."""
    predicted = [phases["forward"] + phases["backward"] for phases in phases_of(job, corrected)]
    seen: dict[int, list[float]] = {}
    for of in (rank for window in windows for rank in window.ranks):
        samples = [split(job.workload.global_batch, job.layout.dp, dp)[1] for dp in (0, of.replica)]
        compute_s = sum(of.phases.get(phase, 0.0) for phase in COMPUTE_PHASES)
        seen.setdefault(of.rank, []).append(compute_s * samples[0] / (samples[1] * predicted[of.stage]))
    return Paces(tuple(median(seen[rank]) if rank in seen else 1.0 for rank in range(job.layout.size)))


def priced(pricer: Pricer, layout: Layout, at: Paces) -> Candidate:
    """A layout at the pace of its stages; its boundaries are cut by that where it has none."""
    pace = at.of_stages(layout)
    if not layout.boundaries:
        pieces = pricer.microbatch(layout)[1]
        layout = layout.but(boundaries=cut_at_pace(layout, pricer.model.layers, pieces, pace))
    outline = pricer.counted(pricer.outline(layout))
    estimate = pricer.price(_slowed(pricer.draft(outline), pace))
    return Candidate(layout, replace(estimate, verdict=verdict(outline.memory_bytes, pricer.device_bytes)))


def _slowed(draft: Draft, pace: Sequence[float]) -> Draft:
    stages = draft.stages

    def at_pace(of: Sequence[Seconds]) -> tuple[Seconds, ...]:
        return tuple(NONE.plus(seconds, pace[stage]) for seconds, stage in zip(of, stages.stage_of, strict=True))

    return replace(draft, stages=replace(stages, compute=at_pace(stages.compute)))


def _ranks_of(layout: Layout, stage: int) -> list[int]:
    degrees = ((dp, cp, tp) for dp in range(layout.dp) for cp in range(layout.cp) for tp in range(layout.tp))
    return [layout.rank(Coord(dp, stage, cp, tp)) for dp, cp, tp in degrees]
