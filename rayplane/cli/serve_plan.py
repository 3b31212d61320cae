"""What `rayplane plan` prints for a job that serves."""

from __future__ import annotations

import time
from dataclasses import asdict

import typer
from rich.table import Table

from rayplane.cli.screen import say, screen, show
from rayplane.cli.words import as_json
from rayplane.plan.machine.cores import priced_by
from rayplane.plan.serving.serve_explain import serve_object, serve_report
from rayplane.plan.serving.serve_plan import ServePlan
from rayplane.plan.serving.serving import plan_of
from rayplane.plan.step.profile import figures, in_words
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.load import load_model

SHOWN = 12
"""So many refused cuts, the smallest first."""


def plan_to_serve(job: ServeJob, cluster: ClusterSpec, json: bool, every: bool) -> None:
    """Rank layouts and replicas for a serving job."""
    begin_s = time.perf_counter()
    answer = plan_of(job, load_model(job.model), cluster)
    search_s = time.perf_counter() - begin_s
    rests_on, precision = priced_by(cluster), job.model.dtype or "bf16"
    if json:
        known = [asdict(figure) for figure in figures(rests_on, precision)]
        typer.echo(as_json({**serve_object(answer), "figures": known, "search_s": search_s}))
        return
    _show(answer, every)
    say(screen(), f"figures {in_words(rests_on, precision)}")


def _show(answer: ServePlan, every: bool) -> None:
    told, console = serve_report(answer), screen()
    ranked = Table(*told.headers, box=None)
    for column in ranked.columns[1:-2]:
        column.justify = "right"
    for row in told.ranked:
        ranked.add_row(*row)
    show(console, ranked)
    for name, text in (("why", told.why), *(("note", note) for note in told.notes)):
        say(console, f"{name}: {text}")
    shown = told.refused if every else told.refused[:SHOWN]
    if shown:
        refused = Table("refused", "reason", box=None)
        for cut, reason in shown:
            refused.add_row(cut, reason)
        show(console, refused)
    if hidden := len(told.refused) - len(shown):
        say(console, f"{hidden} more cuts were refused; --all shows them")
