"""`rayplane check`: does the job's layout compute what one device computes?

dp2 pp2 1f1b mb2 1+1: 4 ranks of a 2-layer model against one device
loss 3.1e-08, gradient norm 5.2e-08, worst of 21 gradients 4.1e-07 (layers.1.k): equal
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rayplane.cli.plan import cluster_of
from rayplane.cli.words import as_json
from rayplane.plan.search import plan as search
from rayplane.spec.load import load_job, load_model
from rayplane.spec.plan import Workload
from rayplane.train.check import TOLERANCE, Comparison, compare


def check(
    job: Annotated[Path, typer.Argument(help="A job file.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run one step of a shrunken form of the job under its layout and on one device, and say where they part; exit code 1 if they do."""
    spec = load_job(job)
    model, workload = load_model(spec.model), Workload(spec.train.global_batch, spec.train.data.seq_len, spec.train.precision)
    layout = search(model, workload, cluster_of(spec), None if spec.layout == "auto" else spec.layout).layout
    result = compare(model, layout, spec.train.global_batch)
    if json:
        typer.echo(as_json(_object(result)))
    else:
        _show(result)
    if result.parts:
        raise typer.Exit(1)


def _object(result: Comparison) -> dict[str, object]:
    return {
        "layout": str(result.layout),
        "ranks": result.layout.size,
        "equal": not result.parts,
        "tolerance": TOLERANCE,
        "loss": result.loss,
        "norm": result.norm,
        "gradients": result.gradients,
    }


def _show(result: Comparison) -> None:
    typer.echo(f"{result.layout}: {result.layout.size} ranks of a {result.model.layers}-layer model against one device")
    worst = max(result.gradients, key=lambda name: result.gradients[name])
    verdict = "equal" if not result.parts else f"they part in {len(result.parts)} places"
    typer.echo(
        f"loss {result.loss:.1e}, gradient norm {result.norm:.1e}, "
        f"worst of {len(result.gradients)} gradients {result.gradients[worst]:.1e} ({worst}): {verdict}"
    )
    for name, difference in result.parts:
        typer.echo(f"  {name}: {difference:.1e}, allowed {TOLERANCE:g}")
