"""`rayplane run`: a job file becomes a trained model (`training`), or a service (`serving`)."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from rayplane.cli.fleet import Options, Runtime
from rayplane.cli.profiles import ProfileOption
from rayplane.cli.screen import screen, stdout_to_stderr
from rayplane.cli.serving import serve
from rayplane.cli.training import train
from rayplane.cli.words import as_json
from rayplane.spec.job import AnyJob, ServeJob
from rayplane.spec.load import load_job

PriorityOption = Annotated[int | None, typer.Option(help="Instead of limits.priority: of jobs that wait, those with more go first.")]


def run(
    job: Annotated[Path, typer.Argument(help="A job file.")],
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout; everything else goes to stderr.")] = False,
    runtime: Annotated[Runtime, typer.Option(help="Who starts the ranks: a Ray cluster, or this process.")] = Runtime.RAY,
    fresh: Annotated[bool, typer.Option(help="Start over; what is in the job's folder is kept under another name.")] = False,
    profile: ProfileOption = "",
    priority: PriorityOption = None,
) -> None:
    """Train a job, from its newest checkpoint if it has one, or serve one. SIGTERM and Ctrl-C save first, or finish what runs; a second
    one does not.
    """
    options = Options(runtime, fresh, profile)
    with stdout_to_stderr() if json else nullcontext():
        spec, console = _prior(load_job(job), priority), screen(stderr=json)
        final, exit_code = serve(spec, options, console) if isinstance(spec, ServeJob) else train(spec, options, console)
    if json:
        typer.echo(as_json(final))
    raise typer.Exit(exit_code)


def _prior(job: AnyJob, priority: int | None) -> AnyJob:
    """The job with another priority, if one is given."""
    if priority is None:
        return job
    return job.model_copy(update={"limits": job.limits.model_copy(update={"priority": priority})})
