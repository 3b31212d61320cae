"""`rayplane explain`: why the planner chooses what it chooses for a job, in text, as one JSON object, or as a page.

winner and runners-up   term by term          axes       bytes, the link that binds, what compute hides
memory, timeline        by stage              sweeps     one number changed at a time
what if                 nic=2x, devices=+8    answers    what a parallel runtime must know, for this job
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayplane.cli.explained import show_explanation
from rayplane.cli.plan import cluster_of
from rayplane.cli.profiles import ProfileOption
from rayplane.cli.screen import say, screen
from rayplane.cli.words import as_json
from rayplane.errors import RayplaneError, SpecError
from rayplane.plan.why.explain import explain as explained
from rayplane.plan.why.explanation import as_object
from rayplane.spec.job import ServeJob
from rayplane.spec.load import load_job, load_model
from rayplane.spec.plan import Workload
from rayplane.web.explain_page import render


def explain(
    job: Annotated[Path, typer.Argument(help="A job file.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures to this file; it needs nothing but itself.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="A change, may be given several times: nic=2x, nvlink=0.5x, latency=5us, hbm=80, devices=+8, nodes=16, island=16, "
            "gpu=h200, batch=2x, seq_len=32k; with a comma several at once."
        ),
    ] = None,
    profile: ProfileOption = "",
) -> None:
    """Say why a job's layout is chosen: against which others, what binds it, and what other machines would change."""
    spec = load_job(job)
    if isinstance(spec, ServeJob):
        raise SpecError(f"{job} is a job that serves, and explain is about training; see rayplane plan {job} for its layouts")
    model, workload, cluster = load_model(spec.model), Workload.of(spec.train), cluster_of(spec, profile)
    layout = None if spec.layout == "auto" else spec.layout
    told = explained(model, workload, cluster, layout, what_if or (), spec.name)
    if html is not None:
        _write(html, render(told))
    if json:
        typer.echo(as_json(as_object(told)))
    elif html is None:
        show_explanation(screen(), told)
    else:
        say(screen(), f"wrote {html}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RayplaneError(f"--html: cannot write {path}: {error.strerror}") from error
