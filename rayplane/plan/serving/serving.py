"""A serving job as the planner sees it: what is served, what is asked, how the engine runs, and the layout if the job gives one.

model.dtype ─▶ Formats.weights       serve.slo, load, replicas ─▶ Demand       serve.batch, kv.memory ─▶ Engine
kv.dtype ────▶ Formats.kv            layout ─▶ Pinned
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayplane.plan.machine.catalog import slowest
from rayplane.plan.serving.engine import RAYPLANE, Engine
from rayplane.plan.serving.serve_plan import Demand, ServePlan
from rayplane.plan.serving.serve_search import Pinned, plan_serving
from rayplane.plan.serving.served import Cut, Formats, Served
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.model import ModelSpec
from rayplane.spec.serve_section import ServeSection

PROMPT, OUTPUT = 1024, 256
"""Tokens of a usual request, where the job does not say."""
CHUNK, CHUNK_ON_CORES = 8192, 512
"""Tokens of a step, where the job does not say: enough to keep a GPU busy; few enough that answers on cores do not stand still."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a plan for a serving job depends on, but the cluster."""

    served: Served
    demand: Demand
    engine: Engine
    pinned: Pinned | None = None


def plan_of(job: ServeJob, model: ModelSpec, cluster: ClusterSpec) -> ServePlan:
    """The layout and replicas for a serving job, those nearest to its limits where none holds them. PlacementError when none fits."""
    asked = asked_of(job, model, cluster)
    return plan_serving(asked.served, asked.demand, cluster, asked.engine, asked.pinned, or_nearest=True)


def asked_of(job: ServeJob, model: ModelSpec, cluster: ClusterSpec) -> Asked:
    """A job's own words as the planner's."""
    layout = job.layout
    pinned = None if layout == "auto" else Pinned(Cut(tp=layout.tp, pp=layout.pp, cp=layout.cp), layout.dp)
    on_cores = bool(cluster.nodes) and slowest(cluster).is_host
    demand = replace(demand_of(job.serve, model), most_devices=job.limits.max_devices)
    return Asked(served_of(job, model), demand, engine_of(job.serve, on_cores), pinned)


def served_of(job: ServeJob, model: ModelSpec) -> Served:
    """The model in the job's formats."""
    weights = job.model.dtype or "bf16"
    kv = weights if job.serve.kv.dtype == "auto" else job.serve.kv.dtype
    return Served(model, Formats(weights, weights, kv), windowed=1.0 if model.window else 0.0)


def demand_of(serve: ServeSection, model: ModelSpec) -> Demand:
    """What is asked, with usual lengths where nothing is said of them."""
    slo, longest = serve.slo, serve.max_context or model.max_seq
    prompt, output = _lengths(serve, longest)
    return Demand(
        prompt=prompt,
        output=output,
        rate=serve.load.requests_s,
        ttft_s=slo.ttft_ms / 1e3 if slo.ttft_ms else math.inf,
        tpot_s=slo.tpot_ms / 1e3 if slo.tpot_ms else math.inf,
        share=slo.percentile / 100,
        cached=serve.load.cached if serve.kv.prefix_cache else 0.0,
        longest=serve.max_context or 0,
        least=serve.replicas.min,
        most=serve.replicas.max,
    )


def engine_of(serve: ServeSection, on_cores: bool) -> Engine:
    """How the engine of the job runs its steps."""
    chunk = serve.batch.max_tokens or (CHUNK_ON_CORES if on_cores else CHUNK)
    return replace(RAYPLANE, chunk=chunk, max_sequences=serve.batch.max_sequences, memory_share=serve.kv.memory)


def _lengths(serve: ServeSection, longest: int) -> tuple[int, int]:
    """Tokens in and out of a usual request: a prompt of at most three quarters of the context, and what it leaves."""
    asked = serve.load
    output = asked.output_tokens or max(1, min(OUTPUT, longest // 4))
    prompt = asked.prompt_tokens or max(1, min(PROMPT, longest - output, longest * 3 // 4))
    return prompt, asked.output_tokens or max(1, min(output, longest - prompt))
