"""`rayplane plan`: what the planner would choose for a job, what else there is, and what it refuses and why."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import ray
import typer
from rich.console import Console
from rich.table import Table

from rayplane.cli.fleet import this_machine
from rayplane.cli.observed import learn, learned_object, show_learned
from rayplane.cli.profiles import ProfileOption, SaveOption, keep, profiled
from rayplane.cli.screen import say, screen, show
from rayplane.cli.serve_plan import plan_to_serve
from rayplane.cli.words import as_json
from rayplane.errors import SpecError
from rayplane.plan.choice.report import as_json as plan_object
from rayplane.plan.choice.report import report
from rayplane.plan.choice.search import plan as search
from rayplane.plan.machine.catalog import described
from rayplane.plan.step.profile import figures, in_words
from rayplane.runtime.ray import connect, discover
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import JobSpec, ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.load import load_job, load_model
from rayplane.spec.plan import Plan, Rejected, Workload

DOES_NOT_FIT = "does not fit"
"""How the planner begins when memory is the reason."""
SHOWN = 20
"""So many refusals are shown unasked; a large cluster can be cut in hundreds of ways that cannot be."""


def plan(
    job: Annotated[Path, typer.Argument(help="A job file.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also show refused variants of microbatch and schedule.")] = False,
    profile: ProfileOption = "",
    observed: Annotated[
        list[str] | None, typer.Option(help="Correct by a running job: URL of Prometheus or of /metrics, or a file.")
    ] = None,
    save: SaveOption = "",
) -> None:
    """Rank layouts for a job without running it: on the cluster it describes, else that of RAY_ADDRESS, else this machine."""
    spec = load_job(job)
    if save and not observed:
        raise SpecError("--save-profile keeps what --observed has taught; name a source with --observed")
    if isinstance(spec, ServeJob):
        if observed:
            raise SpecError("--observed learns from the steps of a job that trains; leave it out for one that serves")
        plan_to_serve(spec, cluster_of(spec, profile), json, every)
        return
    model, workload, cluster = load_model(spec.model), Workload.of(spec.train), cluster_of(spec, profile)
    learned = learn(spec, model, cluster, observed) if observed else None
    kept = keep(learned.cluster, cluster.profile, save) if learned and save else None
    cluster = learned.cluster if learned else cluster
    began = time.process_time()
    answer = search(model, workload, cluster, None if spec.layout == "auto" else spec.layout)
    search_s = time.process_time() - began
    if json:
        rests_on = {"search_s": search_s, "figures": [asdict(f) for f in figures(cluster, workload.precision)]}
        typer.echo(as_json({**plan_object(answer), **rests_on, **({"observed": learned_object(learned, kept)} if learned else {})}))
        return
    console = screen()
    if learned:
        show_learned(console, learned)
    if kept:
        say(console, f"written to {kept}")
    _show(console, answer, every)
    say(console, f"figures {in_words(cluster, workload.precision)}")


def _show(console: Console, answer: Plan, every: bool) -> None:
    told = report(answer)
    ranked = Table(*told.headers, box=None)
    for column in ranked.columns[1:]:
        column.justify = "right"
    for row in told.ranked:
        ranked.add_row(*row)
    show(console, ranked)
    for name, text in (("why", told.why), *(("note", note) for note in told.notes)):
        say(console, f"{name}: {text}")
    shown = answer.rejected if every else _one_per_degrees(answer)[:SHOWN]
    if shown:
        refused = Table("refused", "reason", box=None)
        for rejected in shown:
            refused.add_row(str(rejected.layout), rejected.reason)
        show(console, refused)
    if hidden := len(answer.rejected) - len(shown):
        say(console, f"{hidden} more layouts were refused; --all shows them")


def _one_per_degrees(answer: Plan) -> list[Rejected]:
    """One refusal of each dp x pp x tp that is not in the ranking: where a variant fits, why that one lost."""
    shown = {_degrees(layout) for layout in (answer.layout, *(c.layout for c in answer.runners_up))}
    refusals: dict[tuple[int, ...], Rejected] = {}
    for rejected in sorted(answer.rejected, key=lambda r: r.reason.startswith(DOES_NOT_FIT)):
        if _degrees(rejected.layout) not in shown:
            refusals.setdefault(_degrees(rejected.layout), rejected)
    return [rejected for rejected in answer.rejected if rejected in refusals.values()]


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.dp, layout.pp, layout.cp, layout.tp


def cluster_of(job: JobSpec, profile: str = "") -> ClusterSpec:
    """The cluster to plan for, with the profile that is named, or its own."""
    return profiled(_cluster_of(job), profile, found=job.cluster == "auto")


def _cluster_of(job: JobSpec) -> ClusterSpec:
    if job.cluster != "auto":
        return described(job.cluster)
    if not os.environ.get("RAY_ADDRESS"):
        return this_machine()
    connect()
    try:
        return discover()
    finally:
        ray.shutdown()
