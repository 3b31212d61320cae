"""The cluster as a whole: join it or start an embedded one, list its nodes, reserve places on it.

placement group of a job:    bundle 0 {CPU: 2}    bundle 1 {CPU: 2}    …    one per Slot, all or nothing
"""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from rayplane.errors import PlacementError
from rayplane.plan.machine.catalog import device, homogeneous
from rayplane.plan.machine.names import kind_of
from rayplane.runtime.guardian import end, guarded
from rayplane.runtime.patience import GaveUp, Patience
from rayplane.runtime.ray.shortage import Host, Want, shortage
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.plan import Slot

ISLAND_LABEL = "rayplane.io/island"
NODE_LABEL = "ray.io/node-id"
OBJECT_STORE_BYTES = 100_000_000
"""Of an embedded Ray: nothing of a job goes through the object store."""
ACCELERATOR = "accelerator_type:"
"""Begins the resource by which Ray names a node's GPUs."""
LOOK_S = 0.2
"""How often a wait for places looks whether it should go on."""
TELL_AFTER_S = 2.0
"""Free places take a moment too."""

log = logging.getLogger(__name__)


def connect(address: str = "", num_cpus: int | None = None) -> Any:
    """Join the Ray cluster at `address` or RAY_ADDRESS, else start one on this machine that ends with this process.

    Returns Ray's context: leave it, or call ray.shutdown(), to disconnect. It must be called from the main thread, for an
    embedded Ray ends with the thread that started it. Ray installs a handler of SIGTERM of its own: while it starts, that signal
    raises GaveUp, and afterwards the handler is again the one that was there.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return _connect(address or os.environ.get("RAY_ADDRESS", ""), num_cpus)
    except SystemExit:
        raise GaveUp from None
    finally:
        signal.signal(signal.SIGTERM, handler)


def _connect(address: str, num_cpus: int | None) -> Any:
    namespace = f"rayplane-{uuid.uuid4().hex[:8]}"
    if address and address != "local":
        return ray.init(address=address, namespace=namespace, logging_level=logging.ERROR, log_to_driver=False)
    with guarded() as mark:
        try:
            return ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                namespace=namespace,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except BaseException:
            end(mark)
            raise


def discover(kind: str | None = None) -> ClusterSpec:
    """The devices of the connected cluster: its GPUs, or its CPUs when it has none."""
    nodes = living_nodes()
    resource = "GPU" if any(n["Resources"].get("GPU") for n in nodes) else "CPU"
    names = _names(nodes)
    nodes = [n for n in nodes if n["Resources"].get(resource, 0) >= 1]
    if not nodes:
        raise PlacementError("the Ray cluster has no node with a GPU or CPU; start one with `ray start --address=…` or add workers")
    devices = {names[n["NodeID"]]: int(n["Resources"][resource]) for n in nodes}
    islands = {names[n["NodeID"]]: n["Labels"][ISLAND_LABEL] for n in nodes if ISLAND_LABEL in n["Labels"]}
    kind = kind or _device_kind(nodes, resource)
    memory_bytes = device(kind).memory_bytes
    if resource == "CPU":
        memory_bytes = min(int(n["Resources"].get("memory", 0)) // int(n["Resources"][resource]) for n in nodes)
    return homogeneous(devices, kind, memory_bytes, islands)


def living_nodes() -> list[dict[str, Any]]:
    """Ray's records of the nodes that live, in a stable order."""
    return sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: (n["NodeManagerAddress"], n["NodeID"]))


def node_ids() -> dict[str, str]:
    """Ray's id of each node that lives, by the names that people call it."""
    return {called: node["NodeID"] for node in living_nodes() for called in (node["NodeManagerHostname"], _twin_name(node))}


def host_names() -> tuple[str, ...]:
    """A node of each machine that lives, by name: several nodes may share one."""
    nodes = living_nodes()
    names, by_address = _names(nodes), {n["NodeManagerAddress"]: n["NodeID"] for n in reversed(nodes)}
    return tuple(sorted(names[node_id] for node_id in by_address.values()))


def reserve(name: str, slots: Sequence[Slot], resource: str, each: int, patience: Patience) -> PlacementGroup:
    """A placement group with one bundle per slot, once it is there; `each` is what a rank gets of the resource.

    Raises PlacementError at once when the cluster is too small, after a while when others use what is needed; GaveUp.
    """
    ids = node_ids()
    wants = [Want(each * len(s.ranks), ids.get(s.node, s.node), s.node) for s in slots]
    _refuse_what_cannot_fit(wants, resource)
    selectors = [{NODE_LABEL: w.host_id} if w.host_id else {} for w in wants]
    bundles = [{resource: w.amount} for w in wants]
    group = placement_group(bundles, strategy="PACK", name=name, bundle_label_selector=selectors if any(selectors) else None)
    try:
        _wait(group, wants, resource, patience)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def _refuse_what_cannot_fit(wants: Sequence[Want], resource: str) -> None:
    """Raise PlacementError when the cluster cannot hold the bundles even if nothing else ran on it."""
    nodes = living_nodes()
    names = _names(nodes)
    hosts = [Host(n["NodeID"], names[n["NodeID"]], n["Resources"].get(resource, 0)) for n in nodes]
    if missing := shortage(wants, resource, hosts):
        raise PlacementError(f"the job {missing}. Add nodes, or choose a smaller layout")


def _wait(group: PlacementGroup, wants: Sequence[Want], resource: str, patience: Patience) -> None:
    began_s = time.monotonic()
    told = False
    while not group.wait(LOOK_S):
        _refuse_what_cannot_fit(wants, resource)
        if patience.give_up():
            raise GaveUp
        waited_s = time.monotonic() - began_s
        if waited_s >= patience.wait_s:
            busy = _busy(wants, resource)
            raise PlacementError(f"{busy}; gave up after {patience.wait_s:g} s. Stop other jobs, or choose a smaller layout")
        if waited_s >= TELL_AFTER_S and not told:
            log.warning("%s; waiting up to %g s for other jobs to end", _busy(wants, resource), patience.wait_s)
            told = True


def _busy(wants: Sequence[Want], resource: str) -> str:
    """What is needed, what is free, and which placement groups hold the rest."""
    needed = sum(w.amount for w in wants)
    free, total = ray.available_resources().get(resource, 0), ray.cluster_resources().get(resource, 0)
    held = Counter[str]()
    for other in placement_group_table().values():
        if other["state"] == "CREATED":
            held[other["name"] or other["placement_group_id"][:8]] += sum(b.get(resource, 0) for b in other["bundles"].values())
    holders = ", ".join(f"{name}: {amount:g}" for name, amount in held.most_common() if amount)
    return f"the job needs {needed:g} {resource}, {free:g} of {total:g} are free{f' (held by {holders})' if holders else ''}"


def _names(nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What people call each node, by Ray's id: its host name, with the beginning of the id where several nodes share a host."""
    count = Counter(n["NodeManagerHostname"] for n in nodes)
    return {n["NodeID"]: _twin_name(n) if count[n["NodeManagerHostname"]] > 1 else n["NodeManagerHostname"] for n in nodes}


def _twin_name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}"


def _device_kind(nodes: Sequence[dict[str, Any]], resource: str) -> str:
    """The catalog's name of the devices."""
    if resource == "CPU":
        return "cpu"
    found = sorted({r.removeprefix(ACCELERATOR) for n in nodes for r in n["Resources"] if r.startswith(ACCELERATOR)})
    kinds = {kind_of(name) for name in found}
    if len(kinds) != 1 or "" in kinds:
        names = ", ".join(found) or "no name from Ray"
        raise PlacementError(f"cannot tell what the cluster's GPUs are ({names}): describe them in the job's `cluster:` section")
    return kinds.pop()
