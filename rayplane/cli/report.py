"""The end of a run: one JSON object for programs, a table of stage utilisation and a few lines for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from rayplane.cli.screen import say, show
from rayplane.cli.words import count, duration, loss, share
from rayplane.control.checkpoints import Checkpoint
from rayplane.control.result import Result
from rayplane.control.service_record import ServiceResult
from rayplane.control.service_task import ServiceTask
from rayplane.spec.layout import Layout
from rayplane.spec.report import StageUse

SHARES = ("compute", "wait", "comm", "optimizer", "other")


def result_object(name: str, layout: Layout, result: Result) -> dict[str, Any]:
    """What `rayplane run --json` ends with."""
    return {
        "name": name,
        "state": result.state,
        "layout": {**asdict(layout), "boundaries": list(layout.boundaries)},
        "steps": result.step,
        "final_loss": result.final_loss,
        "holdout_before": result.holdout_before,
        "holdout_after": result.holdout_after,
        "tokens_per_s": round(result.tokens_per_s, 1),
        "stages": _stages(result.stages),
        "checkpoint": result.checkpoint,
        "restarts": result.restarts,
        "wall_s": round(result.wall_s, 2),
        "params": result.params,
        "message": result.message,
    }


def service_object(task: ServiceTask, result: ServiceResult) -> dict[str, Any]:
    """What `rayplane run --json` ends with for a job that serves."""
    layout = result.layout
    return {
        "name": task.name,
        "state": result.state,
        "model": task.model,
        "urls": list(result.urls),
        "layout": {**asdict(layout), "boundaries": list(layout.boundaries)},
        "steps": result.steps,
        "tokens": result.tokens,
        "stages": _stages(result.stages),
        "restarts": result.restarts,
        "wall_s": round(result.wall_s, 2),
        "message": result.message,
    }


def show_service(console: Console, result: dict[str, Any]) -> None:
    """Print the table and the summary of a service's final object."""
    if result["stages"]:
        show(console, _table(result["stages"]))
    lines = {
        "computed": f"{count(result['tokens'])} tokens of prompts and answers in {count(result['steps'])} steps",
        "time": duration(result["wall_s"]),
        "restarts": str(result["restarts"]) if result["restarts"] else "",
    }
    for name, text in lines.items():
        if text:
            say(console, f"{name:14} {text}")


def _stages(stages: tuple[StageUse, ...]) -> list[dict[str, Any]]:
    return [{k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(s).items()} for s in stages]


def nothing_done(name: str, checkpoint: Checkpoint, final_loss: float | None) -> dict[str, Any]:
    """The final object of a run that was stopped before it had a cluster; `final_loss` is that of the checkpoint's step."""
    unknown = dict.fromkeys(("layout", "holdout_before", "holdout_after"))
    known = {"name": name, "state": "drained", "steps": checkpoint.step, "checkpoint": checkpoint.path, "final_loss": final_loss}
    return {**known, **unknown, "tokens_per_s": 0.0, "stages": [], "restarts": 0, "message": ""}


def show_result(console: Console, result: dict[str, Any]) -> None:
    """Print the table and the summary of a final object."""
    if result.get("stages"):
        show(console, _table(result["stages"]))
    lines = {
        "held-out loss": _held_out(result),
        "training loss": f"{loss(result.get('final_loss'))} after {result['steps']} steps",
        "throughput": f"{_rate(result.get('tokens_per_s'))}, {duration(result.get('wall_s') or 0)} in all",
        "restarts": str(result["restarts"]) if result.get("restarts") else "",
        "checkpoint": result.get("checkpoint") or "none",
    }
    for name, text in lines.items():
        if text:
            say(console, f"{name:14} {text}")


def _rate(tokens_per_s: float | None) -> str:
    return f"{count(tokens_per_s)} tokens/s over all timed steps" if tokens_per_s else "not measured, no step was timed"


def _held_out(result: dict[str, Any]) -> str:
    before, after = result.get("holdout_before"), result.get("holdout_after")
    return "" if before is None and after is None else f"{loss(before)} before, {loss(after)} after (nats per token)"


def _table(stages: list[dict[str, Any]]) -> Table:
    table = Table("replica", "stage", *("communication" if s == "comm" else s for s in SHARES), box=None, title="stage utilisation")
    for column in table.columns:
        column.justify = "right"
    for stage in stages:
        table.add_row(str(stage["replica"]), str(stage["stage"]), *(share(stage[s]) for s in SHARES))
    return table
