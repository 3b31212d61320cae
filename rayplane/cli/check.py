"""`rayplane check`: does the job's layout compute what one device computes?

dp2 pp2 1f1b mb2 1+1: 4 ranks of a 2-layer model against one device
loss 3.1e-08, gradient norm 5.2e-08, worst of 21 gradients 4.1e-07 (layers.1.k): equal
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from json import dumps, loads
from pathlib import Path
from typing import Annotated, Any

import typer

from rayplane.cli.plan import cluster_of
from rayplane.cli.words import as_json
from rayplane.errors import RayplaneError
from rayplane.plan.choice.search import plan as search
from rayplane.spec.load import load_model, load_training
from rayplane.spec.plan import Workload

TIMEOUT_S = 600.0


def check(
    job: Annotated[Path, typer.Argument(help="A job file.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a step of a small form of the job under its layout and on one device, and say where they part; exit code 1 if they do."""
    spec = load_training(job, "check")
    model, workload = load_model(spec.model), Workload.of(spec.train)
    layout = search(model, workload, cluster_of(spec), None if spec.layout == "auto" else spec.layout).layout
    question = {"model": asdict(model), "layout": asdict(layout), "global_batch": spec.train.global_batch}
    answer = _ask({**question, "document_mask": spec.train.data.document_mask})
    if json:
        typer.echo(as_json(answer))
    else:
        _show(answer)
    if not answer["equal"]:
        raise typer.Exit(1)


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    """Have it compared in a process of its own: torch stays out of the commands that need none."""
    command = [sys.executable, "-m", "rayplane.train.check"]
    done = subprocess.run(command, input=dumps(question), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RayplaneError(f"the comparison could not be made: {done.stderr.strip().splitlines()[-1]}")
    answer: dict[str, Any] = loads(done.stdout.splitlines()[-1])
    return answer


def _show(answer: dict[str, Any]) -> None:
    typer.echo(f"{answer['layout']}: {answer['ranks']} ranks of a {answer['layers']}-layer model against one device")
    gradients = answer["gradients"]
    worst = max(gradients, key=lambda name: gradients[name])
    verdict = "equal" if answer["equal"] else f"they part in {len(answer['parts'])} places"
    typer.echo(
        f"loss {answer['loss']:.1e}, gradient norm {answer['norm']:.1e}, "
        f"worst of {len(gradients)} gradients {gradients[worst]:.1e} ({worst}): {verdict}"
    )
    for name, difference in answer["parts"]:
        typer.echo(f"  {name}: {difference:.1e}, allowed {answer['tolerance']:g}")
