"""Where the timelines of `rayplane trace` come from: the plan of a job, a schedule alone, or what ranks recorded.

plan ─────▶ Draft ─▶ play ──┐
schedule ─▶ unit costs ─▶ play ──▶ Timeline of a pipe, a row per stage
trace/ ───▶ spans of the slowest replica ──┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayplane.cli.plan import cluster_of
from rayplane.plan.choice.search import plan
from rayplane.plan.step.draft import action_cost, timeline
from rayplane.plan.step.held import fullest
from rayplane.plan.step.pipe import Pipe, stages_of
from rayplane.plan.step.timeline import Timeline, play
from rayplane.plan.step.train import Pricer
from rayplane.spec.job import TrainJob
from rayplane.spec.layout import Coord, Layout
from rayplane.spec.load import load_model
from rayplane.spec.passes import build
from rayplane.spec.plan import Workload
from rayplane.spec.schedule import COMPUTE, Schedule, Span
from rayplane.telemetry.chrome import Lane
from rayplane.telemetry.trace import Step, accuracy_s, spans


@dataclass(frozen=True, slots=True)
class Planned:
    """A step as the planner sees it."""

    title: str
    layout: Layout
    schedule: Schedule
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Measured:
    """The step that was recorded last, on the replica whose pipe took longest; second 0 is its first compute Action."""

    layout: Layout
    step: int
    replica: int
    timeline: Timeline
    accuracy_s: float
    """To what times of two hosts are right."""


def planned(job: TrainJob) -> Planned:
    """The step of a job's plan, on the cluster that `rayplane plan` would take."""
    model, cluster = load_model(job.model), cluster_of(job)
    workload = Workload.of(job.train)
    layout = plan(model, workload, cluster, None if job.layout == "auto" else job.layout).layout
    pricer = Pricer(model, workload, cluster)
    draft = pricer.draft(pricer.outline(layout))
    schedule = build(layout, layout.num_microbatches(workload.global_batch))
    return Planned(f"planned, {layout}, {_many(schedule)}", layout, schedule, timeline(draft))


def alone(layout: Layout, num_microbatches: int) -> Planned:
    """A schedule whose F, I and W take a second each, and all else nothing."""
    chunks = layout.num_chunks
    pipe = Pipe(stages_of(layout), *((1.0,) * chunks,) * 3, p2p_s=(0.0,) * (chunks - 1), reduce_s=(0.0,) * chunks)
    schedule = build(layout, num_microbatches)
    title = f"{layout.schedule}, {layout.pp} stages, {_many(schedule)}"
    return Planned(title, layout, schedule, play(schedule, action_cost(pipe, (1.0,) * num_microbatches, 0.0)))


def measured(step: Step) -> Measured:
    """One recorded step."""
    layout = step[0].layout
    pipes = [_from_zero([spans(step[layout.rank(Coord(dp=d, pp=s))]) for s in range(layout.pp)]) for d in range(layout.dp)]
    replica = max(range(layout.dp), key=lambda d: max(pipes[d].compute_end_s))
    return Measured(layout, step[0].step, replica, pipes[replica], accuracy_s(step))


def lanes(plan: Planned, recorded: Sequence[Step]) -> list[Lane]:
    """The plan's stages, and every rank in every step that was recorded, for a trace viewer."""
    layout = plan.layout
    rows = [
        Lane(("planned",), f"planned, stage {s}", f"rank {layout.rank(Coord(pp=s))}", row) for s, row in enumerate(plan.timeline.ranks)
    ]
    for step in recorded:
        since_s = step[0].start_unix_s - recorded[0][0].start_unix_s
        for t in step:
            at = t.layout.coord(t.rank)
            chain = ("measured", t.step, at.dp, at.cp, at.tp)
            process = f"measured, replica {at.dp}, stage {at.pp}"
            rows.append(Lane(chain, process, f"rank {t.rank}", spans(t), t.stretches, since_s))
    return rows


def busy_s(timeline: Timeline) -> list[float]:
    """Compute seconds of each stage."""
    return [sum(s.end_s - s.start_s for s in row if s.action.op in COMPUTE) for row in timeline.ranks]


def in_flight(schedule: Schedule) -> list[tuple[int, int]]:
    """Per stage, activations at its fullest moment: whole ones, and what of others waits for weight gradients."""
    out = []
    for moments in fullest(schedule):
        whole, half = max(((sum(held[: len(held) // 2]), sum(held[len(held) // 2 :])) for held in moments), key=lambda h: (sum(h), h))
        out.append((whole, half))
    return out


def _many(schedule: Schedule) -> str:
    return f"{schedule.num_microbatches} microbatch{'es' if schedule.num_microbatches > 1 else ''}"


def _from_zero(rows: Sequence[Sequence[Span]]) -> Timeline:
    """Rows of a pipe, moved so that its first compute Action begins at 0."""
    start_s = min(s.start_s for row in rows for s in row if s.action.op in COMPUTE)
    return Timeline(tuple(tuple(Span(s.action, s.start_s - start_s, s.end_s - start_s) for s in row) for row in rows))
