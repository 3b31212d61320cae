"""`rayplane submit`: a job file and its folder go to a running cluster, which runs `rayplane run` there.

--working-dir ──upload──▶ job server ──▶ rayplane run JOB ──logs, asked for again and again──▶ stdout     exit code: the job's
Ctrl-C, SIGTERM ──▶ stop: the job saves after its step, for which it has as long as a step may take
"""

from __future__ import annotations

import json as json_module
import math
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import rayplane
from rayplane.cli.run import PriorityOption
from rayplane.cli.serving import RUNS
from rayplane.cli.signals import stop_on_signals
from rayplane.cli.submission import JobServer, Submission
from rayplane.cli.words import as_json
from rayplane.control.stop import Stop
from rayplane.errors import RayplaneError
from rayplane.spec.job import AnyJob, TrainJob
from rayplane.spec.load import load_afar

POLL_S = 1.0
LOG_SHARE = 10
"""A log that takes long to fetch is fetched less often: so many times as long lies between."""
GRACE = "RAY_JOB_STOP_WAIT_TIME_S"
"""Ray reads it in the job's own runtime environment: seconds between SIGTERM and SIGKILL, 3 by default."""
GRACE_MORE_S = 60
"""Beyond a step and its save: to end ranks and give places back."""

AddressOption = Annotated[str, typer.Option(help="Of the cluster's dashboard: http://HEAD:8265; by default RAY_API_SERVER_ADDRESS.")]
RELATIVE = "note: train.checkpoint.dir is relative, and goes with the cluster's copy of the folder: make it an absolute path"


def submit(
    job: Annotated[Path, typer.Argument(help="A job file in the working directory.")],
    address: AddressOption = "",
    working_dir: Annotated[Path, typer.Option(help="The folder to upload, in which the job then runs.")] = Path(),
    name: Annotated[str, typer.Option(help="What the cluster calls it; by default the job's name. One at a time has it.")] = "",
    priority: PriorityOption = None,
    wait: Annotated[bool, typer.Option(help="Follow the job to its end and take over its exit code; Ctrl-C stops it.")] = True,
    runtime_env_json: Annotated[str, typer.Option(help="More of Ray's runtime environment, as a JSON object.")] = "",
    json: Annotated[bool, typer.Option("--json", help="End with one JSON object on stdout; the job's output goes to stderr.")] = False,
) -> None:
    """Run a job on a cluster from outside of it."""
    spec = load_afar(job)
    environment = _environment(spec, working_dir, runtime_env_json)
    more = [] if priority is None else ["--priority", str(priority)]
    entrypoint = shlex.join(["rayplane", "run", _inside(job, working_dir), *more])
    server, called = JobServer(address), name or spec.name
    found = server.submit(called, entrypoint, environment, {"rayplane.layout": _layout(spec), "rayplane.version": rayplane.__version__})
    typer.echo(f"{called} is submitted as {found}", err=True)
    if isinstance(spec, TrainJob) and not Path(spec.train.checkpoint.dir).expanduser().is_absolute():
        typer.echo(RELATIVE, err=True)
    if not wait:
        typer.echo(as_json({"submission_id": found, "status": "PENDING"}) if json else found)
        return
    ended = _followed(server, found, json)
    if json:
        typer.echo(as_json({"submission_id": ended.id, "status": ended.status, "exit_code": _exit_code(ended)}))
    raise typer.Exit(_exit_code(ended))


def _followed(server: JobServer, job: str, json: bool) -> Submission:
    """The job at its end; what it printed is printed as it comes."""
    stop, shown, asked = Stop(), 0, 0
    with stop_on_signals(stop):
        while True:
            began_s = time.monotonic()
            found, text = server.look(job)
            typer.echo(text[shown:], nl=False, err=json)
            shown = len(text)
            if found.ended:
                if found.status == "FAILED" and found.exit_code is None:
                    typer.echo(found.message, err=True)
                return found
            pause_s = max(POLL_S, LOG_SHARE * (time.monotonic() - began_s))
            while time.monotonic() < began_s + pause_s and not stop.asked():
                time.sleep(POLL_S / 10)
            if stop.take():
                asked += 1
                if asked > 1:
                    raise RayplaneError(f"{job} is being stopped on the cluster; see ray job status {job}")
                typer.echo(f"stopping {job}: it saves after its step; once more to leave it alone with that", err=True)
                server.stop(job)


def _exit_code(found: Submission) -> int:
    """Of the job; one that was stopped on request has saved."""
    if found.exit_code is not None:
        return found.exit_code
    return 0 if found.status in ("SUCCEEDED", "STOPPED") else 1


def _environment(job: AnyJob, working_dir: Path, more: str) -> dict[str, Any]:
    """Ray's runtime environment: the folder without what runs have left in it, and a grace in which a step can be saved."""
    try:
        given = json_module.loads(more or "{}")
    except ValueError as error:
        raise RayplaneError(f"--runtime-env-json: no JSON ({error})") from error
    if not isinstance(given, dict):
        raise RayplaneError('--runtime-env-json: expected an object, such as {"env_vars": {"NCCL_DEBUG": "INFO"}}')
    if "working_dir" in given:
        raise RayplaneError("--runtime-env-json: working_dir is said by --working-dir; leave it out")
    if not working_dir.is_dir():
        raise RayplaneError(f"--working-dir {working_dir}: no such folder")
    grace_s = math.ceil(job.limits.step_timeout_s) + GRACE_MORE_S
    excludes = [".git/", *_own(job, working_dir), *given.get("excludes", [])]
    variables = {GRACE: str(grace_s), **given.get("env_vars", {})}
    return {**given, "working_dir": str(working_dir), "excludes": excludes, "env_vars": variables}


def _own(job: AnyJob, working_dir: Path) -> list[str]:
    """The job's own folder, if it lies in the working directory: its checkpoints are not uploaded."""
    folder = Path(job.train.checkpoint.dir).expanduser() if isinstance(job, TrainJob) else RUNS / job.name
    root = working_dir.resolve()
    inside = (root / folder).resolve()
    return [f"/{inside.relative_to(root)}/"] if inside.is_relative_to(root) and inside != root else []


def _inside(job: Path, working_dir: Path) -> str:
    file, root = job.resolve(), working_dir.resolve()
    if not file.is_relative_to(root):
        raise RayplaneError(f"{job} does not lie in --working-dir {working_dir}, which is all that the cluster gets to see")
    return str(file.relative_to(root))


def _layout(job: AnyJob) -> str:
    """As the job file has it."""
    if job.layout == "auto":
        return "auto"
    return " ".join(f"{name}={value}" for name, value in job.layout.model_dump(mode="json", exclude_unset=True).items())
