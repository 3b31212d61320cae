"""What a running job shows, asked of Prometheus or of the job's exporters, and what the planner learns from it.

URL of a Prometheus server         the newest WINDOW_S seconds, in windows of EVERY_S
URL that ends in /metrics, FILE    one window, all that the exporter has counted; a job has an exporter on each node
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rayplane.cli.screen import say, show
from rayplane.control.status import read_status
from rayplane.errors import RayplaneError
from rayplane.plan.choice.report import seconds
from rayplane.plan.choice.search import plan as search
from rayplane.plan.measured.correct import Correction, Job, correct, corrected
from rayplane.plan.measured.observe import Increases, Place, of_increases
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import TrainJob
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.observation import Observation
from rayplane.spec.plan import Plan, Workload
from rayplane.spec.profile import Observed
from rayplane.telemetry import catalog
from rayplane.telemetry.query import NAME, Prometheus, Series, page, page_in

WINDOW_S, EVERY_S = 600, 60
COUNTERS = (catalog.STEP_SECONDS, catalog.COMM_BYTES, catalog.STEPS)
SHOWN = 5
"""So many layouts that have changed places."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of a layout, the cluster with it, and how all layouts rank before and after."""

    layout: Layout
    correction: Correction
    cluster: ClusterSpec
    before: Plan
    after: Plan


def learn(job: TrainJob, model: ModelSpec, cluster: ClusterSpec, sources: Sequence[str]) -> Learned:
    """Correct the cluster by what the job shows under its layout, and rank layouts again."""
    workload, windows = Workload.of(job.train), observe(sources, job.name)
    before = search(model, workload, cluster, None)
    layout = _layout_of(job, before) if job.layout == "auto" else search(model, workload, cluster, job.layout).layout
    correction = correct(Job(model, workload, layout), cluster, windows)
    date, seen = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), sum(bool(window.ranks) for window in windows)
    of = Observed(date=date, run=job.name, model=model.name, layout=str(layout), windows=seen)
    learned = corrected(cluster, correction, of)
    return Learned(layout, correction, learned, before, search(model, workload, learned, None))


def observe(sources: Sequence[str], run: str) -> list[Observation]:
    """Windows of a run's steps. Raises RayplaneError when a source cannot be read, or knows nothing of the run."""
    grown: dict[float, list[Series]] = {}
    for source in sources:
        if "://" in source and not source.endswith("/metrics"):
            for series in _increases(Prometheus(source), run):
                for unix_s, value in series.values:
                    grown.setdefault(unix_s, []).append(Series(series.labels, ((unix_s, value),)))
        else:
            shown = page(source) if "://" in source else page_in(Path(source))
            grown.setdefault(0.0, []).extend(s for s in shown if s.labels.get("run") == run)
    windows = [_window(series) for _, series in sorted(grown.items())]
    if not any(window.ranks for window in windows):
        raise RayplaneError(f"{', '.join(sources)}: no steps of a run called '{run}'; is it the job's name, and has it begun to train?")
    return windows


def newest(url: str, run: str, window_s: float) -> Observation:
    """What a run did in the last seconds, as a Prometheus server knows it. Raises RayplaneError when that cannot be read."""
    server, shown = Prometheus(url), list[Series]()
    for metric in COUNTERS:
        found = server.instant(f'increase({metric.name}{{run="{run}"}}[{window_s:.0f}s])')
        shown += [Series({**series.labels, NAME: metric.name}, series.values) for series in found]
    return _window(shown)


def _increases(server: Prometheus, run: str) -> Iterator[Series]:
    """How much the run's counters have grown in each window, with the counters' names."""
    now = time.time()
    for metric in COUNTERS:
        query = f'increase({metric.name}{{run="{run}"}}[{EVERY_S}s])'
        for series in server.range(query, now - WINDOW_S, now, EVERY_S):
            yield Series({**series.labels, NAME: metric.name}, series.values)


def _window(shown: Sequence[Series]) -> Observation:
    try:
        seconds_of = {(_place(s), s.labels["phase"]): s.newest for s in shown if s.name == catalog.STEP_SECONDS.name}
        sent = {(_place(s), s.labels["axis"]): s.newest for s in shown if s.name == catalog.COMM_BYTES.name}
    except (KeyError, ValueError) as error:
        names = f"{catalog.STEP_SECONDS.name} or {catalog.COMM_BYTES.name}"
        raise RayplaneError(
            f"the run's {names} has other labels than rayplane writes ({error}): replica, stage and rank as numbers, phase or axis; "
            "give the job's own exporters, or a Prometheus that keeps their labels"
        ) from error
    steps = sum(s.newest for s in shown if s.name == catalog.STEPS.name)
    return of_increases(Increases(steps, seconds_of, sent))


def _place(series: Series) -> Place:
    return int(series.labels["replica"]), int(series.labels["stage"]), int(series.labels["rank"])


def _layout_of(job: TrainJob, planned: Plan) -> Layout:
    """The layout that the job's folder says it ran under, where the planner ranks it, else the one it would choose."""
    status = read_status(Path(job.train.checkpoint.dir).expanduser())
    known = (planned.layout, *(c.layout for c in planned.runners_up))
    return next((layout for layout in known if status and str(layout) == status.layout), planned.layout)


def show_learned(console: Console, learned: Learned) -> None:
    """The multipliers before and after, and the layouts that have changed places."""
    told, correction = Table("term", "before", "after", "spread", "phases seen", box=None), learned.correction
    for column in told.columns[1:]:
        column.justify = "right"
    for term, belief in correction.after.items():
        row = f"{correction.before[term].value:.3f}", f"{belief.value:.3f}", f"{belief.spread:.1%}", str(correction.seen[term])
        told.add_row(term, *row)
    say(console, f"observed under {learned.layout}; how many times as long as predicted each term takes:")
    show(console, told)
    if correction.ignored:
        say(console, f"ignored: {'; '.join(correction.ignored)}")
    for line in changes(learned):
        say(console, line)


def changes(learned: Learned) -> list[str]:
    """Which layouts have changed places, the new best first."""
    was, now = _ranked(learned.before), _ranked(learned.after)
    places = {layout: place for place, layout in enumerate(was, 1)}
    out = []
    for place, (layout, step_s) in enumerate(now.items(), 1):
        if places.get(layout) != place:
            before = f"{places[layout]}, {seconds(was[layout])}" if layout in places else "not among the best"
            out.append(f"place {place}: {layout}, {seconds(step_s)} (before: {before})")
    return out[:SHOWN] or ["no layout has changed its place"]


def learned_object(learned: Learned, kept: Path | None = None) -> dict[str, Any]:
    """As plain data."""
    correction = learned.correction
    terms = {
        term: {"before": asdict(correction.before[term]), "after": asdict(belief), "phases_seen": correction.seen[term]}
        for term, belief in correction.after.items()
    }
    saved = {"profile": str(kept)} if kept else {}
    return {"layout": str(learned.layout), "terms": terms, "ignored": list(correction.ignored), "changes": changes(learned), **saved}


def _ranked(plan: Plan) -> dict[str, float]:
    """Seconds of a step by layout, in order."""
    return {str(plan.layout): plan.estimate.step_s, **{str(c.layout): c.estimate.step_s for c in plan.runners_up}}
