"""Every metric that rayplane exports: name, type, unit, labels and meaning, in one table that export, dashboards and docs share.

    rayplane_steps_total{run="quickstart"}                                                                     one per job
    rayplane_step_seconds_total{run="quickstart", replica="0", stage="1", rank="3", phase="forward"}           one per rank and phase

One run is one job file's life, restarts included. Labels are never called `job` or `instance`: Prometheus sets those itself.
Values of the whole job come from rank 0 alone, or from the driver (state, restarts, checkpoints, prediction), so a sum over every
scraped port counts them once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JOB = ("run",)
RANK = ("run", "replica", "stage", "rank")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. A counter only grows, and its name ends in `_total`; a gauge is the newest value; a histogram counts by size."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...] = ()
    """Upper ends of a histogram's buckets, the last one, which takes the rest, left out."""


STEP_SECONDS = Metric(
    "rayplane_step_seconds_total", "counter", "seconds", (*RANK, "phase"), "Where a rank's time goes; all phases sum to its wall time."
)
COMM_BYTES = Metric("rayplane_comm_bytes_total", "counter", "bytes", (*RANK, "axis"), "Bytes that a rank sent, by mesh axis.")
MEMORY_PEAK = Metric("rayplane_memory_peak_bytes", "gauge", "bytes", RANK, "Peak memory of a rank: resident on CPU, allocated on CUDA.")
STEP_MEASURED = Metric("rayplane_step_measured_seconds", "gauge", "seconds", RANK, "Wall time of a rank's last step.")
STEP_PREDICTED = Metric("rayplane_step_predicted_seconds", "gauge", "seconds", JOB, "Wall time of a step as the planner predicts it.")
STEP = Metric("rayplane_step", "gauge", "step", JOB, "The last step done; it goes back when a restart repeats steps.")
STEPS = Metric("rayplane_steps_total", "counter", "steps", JOB, "Steps done, those that a restart repeats included.")
TOKENS = Metric("rayplane_tokens_total", "counter", "tokens", JOB, "Tokens trained on, those of repeated steps included.")
LOSS = Metric("rayplane_loss", "gauge", "nats per token", JOB, "Training loss of the last step, over its whole global batch.")
GRAD_NORM = Metric("rayplane_grad_norm", "gauge", "1", JOB, "Global gradient norm of the last step, before it is clipped.")
LEARNING_RATE = Metric("rayplane_learning_rate", "gauge", "1", JOB, "Learning rate of the last step.")
CHECKPOINTS = Metric("rayplane_checkpoints_total", "counter", "checkpoints", JOB, "Checkpoints completed.")
RESTARTS = Metric("rayplane_restarts_total", "counter", "restarts", JOB, "Restarts of all ranks after a failure.")
JOB_STATE = Metric("rayplane_job_state", "gauge", "1", ("run", "state"), "1 for the state that the job is in, 0 for those it has left.")

CATALOG: tuple[Metric, ...] = (
    STEP_SECONDS,
    COMM_BYTES,
    MEMORY_PEAK,
    STEP_MEASURED,
    STEP_PREDICTED,
    STEP,
    STEPS,
    TOKENS,
    LOSS,
    GRAD_NORM,
    LEARNING_RATE,
    CHECKPOINTS,
    RESTARTS,
    JOB_STATE,
)
"""All metrics, in the order they are documented."""


def markdown_table(metrics: tuple[Metric, ...] = CATALOG) -> str:
    """The catalog as the documentation shows it."""
    rows = [f"| `{m.name}` | {m.type} | {m.unit} | {', '.join(m.labels)} | {m.help} |" for m in metrics]
    return "\n".join(["| metric | type | unit | labels | meaning |", "|---|---|---|---|---|", *rows]) + "\n"
