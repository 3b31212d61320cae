"""The actor that owns the ranks of a stage on one node: it imports no torch, is never restarted and ends with its driver.

RayGroup ──next_messages(attempt, seen)──▶ StageActor ── Gang ── ranks of one Slot
                                               └──reports, fire and forget──▶ NodeExporter ──▶ /metrics
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rayplane.runtime.child import die_with_parent
from rayplane.runtime.gang import Gang
from rayplane.runtime.group import REPORTS, Launch, Message, RankMessage, any_report
from rayplane.runtime.process import rank_spec
from rayplane.runtime.rendezvous import Orders
from rayplane.spec.plan import Slot

CONCURRENCY = 8
"""Calls an actor serves at once: one waits for messages, the others must get past it."""
END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Site:
    """Where an actor came to live."""

    node_id: str
    address: str
    gpus: tuple[str, ...]
    pid: int


class StageActor:
    """Owns the ranks of one Slot."""

    def __init__(self, slot: Slot):
        # Ray takes two seconds to end an actor whose node's server is gone; its ranks would live on.
        die_with_parent()
        self._slot = slot
        self._gang = Gang()
        self._exporter: Any = None
        self._arrived = threading.Condition()
        self._attempt = 0
        self._unseen: list[RankMessage] = []
        self._num_seen = 0

    def __repr__(self) -> str:
        return f"StageActor(replica {self._slot.replica}, stage {self._slot.stage}, part {self._slot.part})"

    def site(self) -> Site:
        """Where this actor is; also says that it lives."""
        context = ray.get_runtime_context()
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        return Site(context.get_node_id(), ray.util.get_node_ip_address(), gpus, os.getpid())

    def start(self, launch: Launch, slot: Slot, exporter: Any, gpus: tuple[str, ...], attempt: int) -> frozenset[int]:
        """Spawn the slot's ranks for which no process has parked, returning the others; what was said before is forgotten.

        `exporter` is the NodeExporter of this node, or None; `gpus` what each rank gets, empty on a CPU; `attempt` counts starts.
        """
        self._slot, self._exporter = slot, exporter
        with self._arrived:
            self._attempt, self._unseen, self._num_seen = attempt, [], 0
            self._arrived.notify_all()
        devices = gpus or ("",) * len(self._slot.ranks)
        specs = [rank_spec(launch, rank, gpu) for rank, gpu in zip(self._slot.ranks, devices, strict=True)]
        return self._gang.start(specs, partial(self._deliver, attempt))

    def next_messages(self, attempt: int, num_seen: int, timeout_s: float) -> list[RankMessage]:
        """Messages after the first `num_seen`, waiting for one; those before are forgotten, so that a lost answer can be had again."""
        with self._arrived:
            if attempt == self._attempt:
                del self._unseen[: num_seen - self._num_seen]
                self._num_seen = num_seen
            self._arrived.wait_for(lambda: bool(self._unseen) or attempt != self._attempt, timeout_s)
            return list(self._unseen) if attempt == self._attempt else []

    def send(self, orders: Orders) -> None:
        """Hand each message to its rank."""
        self._gang.send(orders)

    def broadcast(self, message: Message) -> None:
        """Hand a message to every rank."""
        self._gang.broadcast(message)

    def discard(self, ranks: frozenset[int]) -> None:
        """SIGKILL some ranks, of which nothing more is heard."""
        self._gang.discard(ranks)

    def kill(self) -> None:
        """SIGKILL every rank; on return none is left."""
        self._gang.kill()

    def _deliver(self, attempt: int, item: RankMessage) -> None:
        if self._exporter and item.message["type"] in REPORTS:
            self._exporter.observe.remote(any_report(item.message))
        with self._arrived:
            if attempt == self._attempt:
                self._unseen.append(item)
                self._arrived.notify_all()


def stage_actor(slot: Slot, resource: str, each: int, places: PlacementGroup, bundle: int) -> Any:
    """A StageActor that fills a bundle of the placement group; `each` is what a rank of it has of the resource."""
    there = PlacementGroupSchedulingStrategy(places, placement_group_bundle_index=bundle)
    amount = {f"num_{resource.lower()}s": each * len(slot.ranks)}
    actor: Any = ray.remote(StageActor)
    return actor.options(
        scheduling_strategy=there, max_restarts=0, max_task_retries=0, max_concurrency=CONCURRENCY, **{"num_cpus": 0, **amount}
    ).remote(slot)


def light_actor(slot: Slot, node_id: str) -> Any:
    """A StageActor that takes nothing of its node."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    actor: Any = ray.remote(StageActor)
    return actor.options(scheduling_strategy=there, num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=CONCURRENCY).remote(
        slot
    )


def end_process(site: Site) -> Any:
    """SIGKILL a stuck actor's process from its own node; its ranks die with it. Ray itself would first wait for it to end in peace."""
    there = NodeAffinitySchedulingStrategy(site.node_id, soft=False)
    task: Any = ray.remote(_end_process)
    return task.options(scheduling_strategy=there, num_cpus=0, max_retries=0).remote(site.pid)


def _end_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], END_TIMEOUT_S)
        finally:
            os.close(process)
