"""`rayplane validate`: every mistake of every file, or what the model comes to.

jobs/quickstart.yaml: ok: tiny-llama, 1.64 M parameters, 300 steps of 4096 tokens
jobs/serve-smollm2.yaml: ok: smollm2, 135 M parameters, served on port 8000, contexts of up to 4096 tokens
jobs/bad.yaml:12: train.step: unknown field, did you mean 'steps'?
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from rayplane.cli.words import as_json, count
from rayplane.errors import SpecError
from rayplane.spec.job import AnyJob, TrainJob
from rayplane.spec.load import load_job, load_model
from rayplane.spec.model import ModelSpec


def validate(
    jobs: Annotated[list[Path], typer.Argument(help="Job files.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list, an object per file.")] = False,
) -> None:
    """Check job files without starting anything; exit code 2 when one has a mistake."""
    checks = [_check(path) for path in jobs]
    if json:
        typer.echo(as_json(checks))
    else:
        for check in checks:
            _show(check)
    if not all(check["ok"] for check in checks):
        raise typer.Exit(SpecError.exit_code)


def _check(path: Path) -> dict[str, Any]:
    try:
        job = load_job(path)
        model = load_model(job.model)
    except SpecError as error:
        return {"file": str(path), "ok": False, "problems": [{**asdict(p), "text": str(p)} for p in error.problems]}
    return {
        "file": str(path),
        "ok": True,
        "problems": [],
        "name": job.name,
        "model": model.name,
        "params": model.num_params,
        "layers": model.layers,
        **_purpose(job, model),
    }


def _purpose(job: AnyJob, model: ModelSpec) -> dict[str, Any]:
    """What the job does with its model."""
    if isinstance(job, TrainJob):
        return {"steps": job.train.steps, "tokens_per_step": job.train.global_batch * job.train.data.seq_len}
    return {"port": job.serve.port, "max_context": job.serve.max_context or model.max_seq}


def _show(check: dict[str, Any]) -> None:
    for problem in check["problems"]:
        typer.echo(problem["text"], err=True)
    if check["ok"]:
        size = f"{check['model']}, {count(check['params'])} parameters"
        if "steps" in check:
            purpose = f"{check['steps']} steps of {check['tokens_per_step']} tokens"
        else:
            purpose = f"served on port {check['port']}, contexts of up to {check['max_context']} tokens"
        typer.echo(f"{check['file']}: ok: {size}, {purpose}")
