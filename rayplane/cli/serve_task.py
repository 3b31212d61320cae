"""What a job that serves means for its controller: a replica's ranks and an ingress as launches, and how many there may be.

plan ─▶ Way        cluster ─▶ Ways: what others there are        job ─▶ tokenizer, keys, secret ─▶ configs of replica and ingress
"""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from rayplane.api.config import NO_REPLICA_S, ServerConfig
from rayplane.cli.api_keys import api_keys
from rayplane.cli.serve_tokenizer import ServeTokenizer, serve_tokenizer
from rayplane.cli.serve_ways import Ways
from rayplane.control.budget import allowed
from rayplane.control.lock import lease_path
from rayplane.control.service_task import ServiceTask
from rayplane.control.way import Way
from rayplane.plan.serving.serve_capacity import capacity_of
from rayplane.plan.serving.serve_plan import ServePlan
from rayplane.rank.lease import Lease
from rayplane.runtime.group import Launch
from rayplane.runtime.lease import grant
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement

REPLICA, INGRESS = "rayplane.serve.worker", "rayplane.api.server"
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class ServeOrder:
    """What was asked for. Relative paths in a job are relative to where the command runs."""

    job: ServeJob
    model: ModelSpec
    directory: Path


def serve_task(order: ServeOrder, chosen: ServePlan, cluster: ClusterSpec, device: str) -> ServiceTask:
    """The task, for a plan on this cluster; the model's tokenizer lies in the job's folder afterwards."""
    job, serving, capacity = order.job, order.job.serve, capacity_of(order.job, order.model, cluster, chosen.best)
    ways, way = Ways(job, order.model, cluster), Way(capacity.layout, chosen.best.cores)
    limits = ways.ability(way).limits
    tokenizer, secret = serve_tokenizer(job, order.directory), secrets.token_hex(SECRET_BYTES)
    # Who shares a machine with what is left of an earlier run waits for its end; on several there may be no folder that all see.
    lease = grant(lease_path(order.directory)) if len(cluster.nodes) == 1 else None
    return ServiceTask(
        name=job.name,
        directory=order.directory,
        replica=_replica(order, device, (secret, tokenizer), lease),
        ingress=_ingress(order, (secret, tokenizer), lease),
        way=way,
        replicas=min(max(chosen.best.replicas, limits.least), limits.most),
        devices=cluster.num_devices,
        place=ways.place,
        ability=ways.ability,
        restarts=allowed(job.limits, "rank"),
        drain_s=serving.drain_s,
        model=serving.model_name or job.name,
        ask=ways.ask if job.layout == "auto" and job.limits.replan else None,
        hold=serving.replicas.hold_s > 0,
    )


def _replica(order: ServeOrder, device: str, said: tuple[str, ServeTokenizer], lease: Lease | None) -> Launch:
    secret, tokenizer = said
    config = {
        "job": order.job.model_dump(mode="json"),
        "secret": secret,
        "tokenizer": tokenizer.file,
        "end_tokens": list(tokenizer.end_tokens),
    }
    logs, here = str(order.directory / "logs"), str(Path.cwd())
    return Launch(order.job.name, Layout(), Placement(()), REPLICA, config, device, logs, here, lease)


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
        no_replica_s=max(NO_REPLICA_S, serving.replicas.hold_s),
        max_body_bytes=round(serving.max_body_mb * 1e6),
        drain_s=serving.drain_s,
        vocab=model.vocab,
        end_tokens=tokenizer.end_tokens,
    )
