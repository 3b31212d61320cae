"""What a job that serves means for its controller: a replica's ranks and an ingress as launches, and how many there may be.

plan ─▶ Capacity ─▶ layout of a replica, berths, most        job ─▶ tokenizer, keys, secret ─▶ configs of replica and ingress
"""

from __future__ import annotations

import math
import secrets
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rayplane.api.config import ServerConfig
from rayplane.cli.api_keys import api_keys
from rayplane.cli.serve_tokenizer import ServeTokenizer, serve_tokenizer
from rayplane.control.autoscale import Limits
from rayplane.control.berths import berths_of
from rayplane.control.load import Load
from rayplane.control.lock import lease_path
from rayplane.control.service_task import ServiceTask
from rayplane.plan.serving.serve_capacity import Capacity, capacity_of
from rayplane.plan.serving.serve_plan import ServePlan
from rayplane.runtime.group import Launch
from rayplane.runtime.lease import Lease, grant
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement

REPLICA, INGRESS = "rayplane.serve.worker", "rayplane.api.server"
SECRET_BYTES = 32
MARGIN = 1.25
"""A number of replicas holds where it holds so much more than is asked now, so that a little more does not undo a decision at once."""


@dataclass(frozen=True, slots=True)
class ServeOrder:
    """What was asked for. Relative paths in a job are relative to where the command runs."""

    job: ServeJob
    model: ModelSpec
    directory: Path


def serve_task(order: ServeOrder, chosen: ServePlan, cluster: ClusterSpec, device: str) -> ServiceTask:
    """The task, for a plan on this cluster; the model's tokenizer lies in the job's folder afterwards."""
    job, serving, capacity = order.job, order.job.serve, capacity_of(order.job, order.model, cluster, chosen.best)
    berths = berths_of(capacity.placement()).placements
    limits = _limits(job, len(berths))
    tokenizer, secret = serve_tokenizer(job, order.directory), secrets.token_hex(SECRET_BYTES)
    # Who shares a machine with what is left of an earlier run waits for its end; on several there may be no folder that all see.
    lease = grant(lease_path(order.directory)) if len(cluster.nodes) == 1 else None
    return ServiceTask(
        name=job.name,
        directory=order.directory,
        replica=_replica(order, capacity, device, (secret, tokenizer), lease),
        ingress=_ingress(order, (secret, tokenizer), lease),
        berths=berths,
        replicas=min(max(chosen.best.replicas, limits.least), limits.most),
        limits=limits,
        restarts=job.limits.restarts,
        drain_s=serving.drain_s,
        model=serving.model_name or job.name,
        holds=partial(_holds, capacity),
    )


def _limits(job: ServeJob, room: int) -> Limits:
    serving, dp = job.serve, None if job.layout == "auto" else job.layout.dp
    most = dp or min(room, serving.replicas.max or room)
    ttft_s, tpot_s = (ms / 1e3 if ms else math.inf for ms in (serving.slo.ttft_ms, serving.slo.tpot_ms))
    return Limits(dp or min(serving.replicas.min, most), most, ttft_s, tpot_s)


def _replica(order: ServeOrder, capacity: Capacity, device: str, said: tuple[str, ServeTokenizer], lease: Lease | None) -> Launch:
    (secret, tokenizer), layout, cores = said, capacity.layout, capacity.entry.on.cores
    config = {
        "job": order.job.model_dump(mode="json"),
        "layout": asdict(layout),
        "secret": secret,
        "threads": cores,
        "tokenizer": tokenizer.file,
        "end_tokens": list(tokenizer.end_tokens),
    }
    logs, here = str(order.directory / "logs"), str(Path.cwd())
    return Launch(order.job.name, layout, Placement(()), REPLICA, config, device, logs, here, lease, cores=cores)


def _ingress(order: ServeOrder, said: tuple[str, ServeTokenizer], lease: Lease | None) -> Launch:
    config = asdict(_server(order, *said))
    logs, here = str(order.directory / "logs"), str(Path.cwd())
    return Launch(order.job.name, Layout(), Placement(()), INGRESS, config, "cpu", logs, here, lease, cores=0)


def _server(order: ServeOrder, secret: str, tokenizer: ServeTokenizer) -> ServerConfig:
    job, serving, model = order.job, order.job.serve, order.model
    return ServerConfig(
        model=serving.model_name or job.name,
        tokenizer=tokenizer.source,
        secret=secret,
        max_context=min(serving.max_context or model.max_seq, model.max_seq),
        run=job.name,
        host=serving.host,
        port=serving.port,
        api_keys=api_keys(serving.api_keys),
        max_queue=serving.queue.max_requests,
        deadline_s=serving.queue.deadline_s,
        max_body_bytes=round(serving.max_body_mb * 1e6),
        drain_s=serving.drain_s,
        vocab=model.vocab,
        end_tokens=tokenizer.end_tokens,
    )


def _holds(capacity: Capacity, replicas: int, load: Load) -> bool:
    """What the planner says of a load, whose requests are as long as they were on average."""
    if not load.requests_s:
        return not load.offered_s
    prompt, output = load.prompt_tokens_s / load.requests_s, load.output_tokens_s / load.requests_s
    return capacity.holds(replicas, MARGIN * load.offered_s, prompt, output)
