"""Correction of predictions by what a running job shows: a multiplier per term, each with its confidence, and the plan made anew.

    phase of a stage      predicted by
    forward, backward     compute and host (launches)
    tp, cp, dp            tp, cp, dp
    recv_wait             p2p, on top of the stage's idle time once the others are corrected

What is observed of a stage is the median over its ranks and over windows of time: a slow rank, or a bad minute, is not the rule.

Where a phase is predicted as nothing, or was not observed, its term keeps what was believed before: at first 1, the surer the better
the source of its figures is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rayplane.errors import SpecError
from rayplane.plan.machine.catalog import slowest
from rayplane.plan.measured.regression import Belief, Beliefs, Row, faded, update
from rayplane.plan.step.profile import ASSUMED, MEASURED, TABLE, figures
from rayplane.plan.step.terms import TERMS
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.observation import Observation
from rayplane.spec.plan import Workload
from rayplane.spec.profile import FORMAT, Factor, Hardware, Observed, Profile, Versions

SPREADS = {MEASURED: 0.15, TABLE: 0.30, ASSUMED: 0.60}
"""How far off a term may be, by the source of the figure that it rests on most."""
RESTS_ON = {
    "compute": "products",
    "host": "launch",
    "tp": "rings inside",
    "cp": "link inside",
    "dp": "rings across",
    "p2p": "link inside",
}
NOTHING = 1e-9
"""The multiplier of a term that is left out."""
ROUNDS = 6
LEAST_S = 1e-7
"""Predictions below this are none."""


@dataclass(frozen=True, slots=True)
class Job:
    """What runs, and under which layout, with its boundaries."""

    model: ModelSpec
    workload: Workload
    layout: Layout


@dataclass(frozen=True, slots=True)
class Correction:
    """Multipliers before and after an observation, of how many phases each was seen in, and what could not be used."""

    before: Mapping[str, Belief]
    after: Mapping[str, Belief]
    seen: Mapping[str, int]
    ignored: tuple[str, ...]


def correct(job: Job, cluster: ClusterSpec, windows: Sequence[Observation]) -> Correction:
    """Learn from some windows of a job's steps. Raises SpecError when it ran under another layout."""
    prior = prior_of(cluster, job.workload.precision)
    before = faded({**prior, **_known(cluster.profile)}, prior)
    ignored, windows = tuple(dict.fromkeys(text for w in windows for text in w.ignored)), [w for w in windows if w.ranks]
    for window in windows:
        _check_layout(job.layout, window)
    if not windows:
        return Correction(before, before, dict.fromkeys(TERMS, 0), ignored)
    observed = _by_stage(windows)
    rows = list(_rows(job, cluster, observed))
    first = after = update(before, rows)
    waits: list[Row] = []
    # How much of a transfer shows depends on how long it takes, so that is found step by step.
    for _ in range(ROUNDS if job.layout.pp > 1 else 0):
        waits = list(_waits(job, with_beliefs(cluster, after), observed))
        after = update(first, waits)
    seen = {term: sum(row.predicted_s.get(term, 0.0) > 0 for row in (*rows, *waits)) for term in TERMS}
    return Correction(before, after, seen, ignored)


def prior_of(cluster: ClusterSpec, precision: str) -> dict[str, Belief]:
    """What to believe before any job was observed."""
    source = {figure.name: figure.source for figure in figures(replace(cluster, profile=_plain(cluster.profile)), precision)}
    islands = len(cluster.islands)
    rests_on = {**RESTS_ON, "dp": RESTS_ON["dp" if islands > 1 else "tp"]}
    return {term: Belief(1.0, SPREADS[source[rests_on[term]]]) for term in TERMS}


def with_beliefs(cluster: ClusterSpec, beliefs: Beliefs) -> ClusterSpec:
    """The cluster with a profile that holds these multipliers, beside what was measured of it if anything was."""
    known = cluster.profile or empty_profile(cluster)
    factors = tuple(Factor(term=term, value=b.value, spread=b.spread) for term, b in beliefs.items())  # type: ignore[arg-type]
    return replace(cluster, profile=known.model_copy(update={"correction": factors}))


def empty_profile(cluster: ClusterSpec) -> Profile:
    """Of a cluster of which nothing was measured."""
    return Profile(
        date="",
        hardware=Hardware(device=slowest(cluster).name, name="", nodes=len(cluster.nodes), devices=cluster.num_devices),
        versions=Versions(rayplane="", torch=""),
    )


def corrected(cluster: ClusterSpec, correction: Correction, of: Observed) -> ClusterSpec:
    """The cluster with a profile that holds what was learned, and of which run; to be saved and planned with."""
    learned = with_beliefs(cluster, correction.after).profile
    assert learned is not None, "it was just given one"
    factors = tuple(f.model_copy(update={"seen": correction.seen[f.term]}) for f in learned.correction)
    return replace(cluster, profile=learned.model_copy(update={"format": FORMAT, "correction": factors, "observed": of}))


def _known(profile: Profile | None) -> dict[str, Belief]:
    return {f.term: Belief(f.value, f.spread) for f in profile.correction} if profile else {}


def _plain(profile: Profile | None) -> Profile | None:
    return profile.model_copy(update={"correction": (), "observed": None}) if profile else None


def _check_layout(layout: Layout, seen: Observation) -> None:
    shape = (layout.dp, layout.pp, layout.size)
    observed = (seen.replicas, seen.stages, len(seen.ranks))
    if shape != observed:
        raise SpecError(
            f"the metrics are of {observed[2]} ranks in {observed[0]} replicas of {observed[1]} stages, and {layout} has "
            f"{shape[2]} in {shape[0]} of {shape[1]}; write the layout that the job ran under into its file"
        )


def _by_stage(windows: Sequence[Observation]) -> list[dict[str, float]]:
    """Seconds by phase of each stage: the median over windows and over its ranks that say it."""
    out = []
    for stage in range(windows[0].stages):
        ranks = [rank for window in windows for rank in window.ranks if rank.stage == stage]
        names = dict.fromkeys(name for rank in ranks for name in rank.phases)
        out.append({name: median(rank.phases[name] for rank in ranks if name in rank.phases) for name in names})
    return out


def _rows(job: Job, cluster: ClusterSpec, observed: list[dict[str, float]]) -> Iterator[Row]:
    """What each stage does, against the predictions without any correction."""
    plain = replace(cluster, profile=_plain(cluster.profile))
    whole = phases_of(job, plain)
    bare = phases_of(job, with_beliefs(plain, {"host": Belief(NOTHING, 0.0)}))
    for seen, all_of, compute_only in zip(observed, whole, bare, strict=True):
        for phase in ("forward", "backward"):
            compute_s = compute_only[phase]
            yield from _row(seen, phase, {"compute": compute_s, "host": all_of[phase] - compute_s})
        for phase in ("tp", "cp", "dp"):
            yield from _row(seen, phase, {phase: all_of[phase]})


def _waits(job: Job, cluster: ClusterSpec, observed: list[dict[str, float]]) -> Iterator[Row]:
    """How long each stage stands idle: a part that no transfer makes, and one that transfers make."""
    beliefs = _known(cluster.profile)
    slow, fast = phases_of(job, cluster), phases_of(job, with_beliefs(cluster, {**beliefs, "p2p": Belief(NOTHING, 0.0)}))
    for seen, with_p2p, without in zip(observed, slow, fast, strict=True):
        transfers_s = (with_p2p["recv_wait"] - without["recv_wait"]) / beliefs["p2p"].value
        yield from _row(seen, "recv_wait", {"p2p": transfers_s}, without["recv_wait"])


def _row(seen: Mapping[str, float], phase: str, predicted: dict[str, float], offset_s: float = 0.0) -> Iterator[Row]:
    predicted = {term: seconds for term, seconds in predicted.items() if seconds > LEAST_S}
    if predicted and seen.get(phase, 0.0) > 0:
        yield Row(seen[phase], predicted, sum(seen.values()), max(0.0, offset_s))


def phases_of(job: Job, cluster: ClusterSpec) -> list[dict[str, float]]:
    """Predicted seconds of a step by phase, for each stage."""
    pricer = Pricer(job.model, job.workload, cluster)
    draft = pricer.draft(pricer.outline(job.layout))
    stages, rounds = draft.stages, draft.outline.rounds
    by_stage = stages.pipe.by_stage
    columns = {
        "forward": by_stage([rounds * s.forward for s in stages.compute]),
        "backward": by_stage([rounds * s.backward for s in stages.compute]),
        "tp": by_stage([rounds * s.total for s in stages.tp]),
        "cp": by_stage([rounds * s.total for s in stages.cp]),
        "dp": by_stage([rounds * s.total + r for s, r in zip(stages.dp, stages.reduce_s, strict=True)]),
    }
    out = [{name: of[stage] for name, of in columns.items()} for stage in range(job.layout.pp)]
    step_s = draft.step_s(pricer.orders)
    for phases in out:
        phases["dp"] += stages.sync_s
        phases["recv_wait"] = step_s - stages.optimizer_s - sum(phases.values())
    return out
