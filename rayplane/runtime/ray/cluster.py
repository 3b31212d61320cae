"""The cluster as a whole: join it or start an embedded one, list its nodes, reserve places on it.

placement group of a job:    bundle 0 {CPU: 2}    bundle 1 {CPU: 2}    …    one per Slot, all or nothing
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from rayplane.errors import PlacementError
from rayplane.plan.catalog import device, homogeneous
from rayplane.runtime.guardian import descendants, guard
from rayplane.runtime.ray.shortage import Host, Want, shortage
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.plan import Slot

ISLAND_LABEL = "rayplane.io/island"
NODE_LABEL = "ray.io/node-id"
OBJECT_STORE_BYTES = 100_000_000
"""Of an embedded Ray: nothing of a job goes through the object store."""
DEVICE_KINDS = {
    "A100": "a100-40gb",  # the smaller of two that Ray does not tell apart
    "A100-40G": "a100-40gb",
    "A100-80G": "a100-80gb",
    "H100": "h100-sxm",
    "H200": "h200",
    "B200": "b200",
    "L40S": "l40s",
    "AMD-Instinct-MI300X-OAM": "mi300x",
}
"""The catalog's name by Ray's accelerator type."""
LOOK_S = 1.0
"""How often a wait for places looks at why it waits."""

log = logging.getLogger(__name__)


def connect(address: str = "", num_cpus: int | None = None) -> Any:
    """Join the Ray cluster at `address` or RAY_ADDRESS, else start one on this machine that ends with this process.

    Returns Ray's context: leave it, or call ray.shutdown(), to disconnect. Ray replaces the handler of SIGTERM. It must be
    called from the main thread, for an embedded Ray ends with the thread that started it.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    namespace = f"rayplane-{uuid.uuid4().hex[:8]}"
    if address and address != "local":
        return ray.init(address=address, namespace=namespace, logging_level=logging.ERROR, log_to_driver=False)
    before = descendants(os.getpid())
    context = ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        namespace=namespace,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    guard(descendants(os.getpid()) - before)
    return context


def discover(kind: str | None = None) -> ClusterSpec:
    """The devices of the connected cluster: its GPUs, or its CPUs when it has none. Node names are Ray's node ids."""
    nodes = living_nodes()
    resource = "GPU" if any(n["Resources"].get("GPU") for n in nodes) else "CPU"
    nodes = [n for n in nodes if n["Resources"].get(resource, 0) >= 1]
    if not nodes:
        raise PlacementError("the Ray cluster has no node with a GPU or CPU; start one with `ray start --address=…` or add workers")
    devices = {n["NodeID"]: int(n["Resources"][resource]) for n in nodes}
    islands = {n["NodeID"]: n["Labels"][ISLAND_LABEL] for n in nodes if ISLAND_LABEL in n["Labels"]}
    kind = kind or _device_kind(nodes, resource)
    memory_bytes = device(kind).memory_bytes
    if resource == "CPU":
        memory_bytes = min(int(n["Resources"].get("memory", 0)) // devices[n["NodeID"]] for n in nodes)
    return homogeneous(devices, kind, memory_bytes, islands)


def living_nodes() -> list[dict[str, Any]]:
    """Ray's records of the nodes that live, in a stable order."""
    return sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: (n["NodeManagerAddress"], n["NodeID"]))


def reserve(name: str, slots: Sequence[Slot], resource: str, wait_s: float) -> PlacementGroup:
    """A placement group with one bundle per slot, once it is there.

    Raises PlacementError at once when the cluster is too small, after `wait_s` when others use what is needed.
    """
    wants = [Want(len(s.ranks), s.node if _is_node_id(s.node) else "") for s in slots]
    refuse_what_cannot_fit(wants, resource)
    selectors = [{NODE_LABEL: w.host_id} if w.host_id else {} for w in wants]
    bundles = [{resource: w.amount} for w in wants]
    group = placement_group(bundles, strategy="PACK", name=name, bundle_label_selector=selectors if any(selectors) else None)
    try:
        _wait(group, wants, resource, wait_s)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def refuse_what_cannot_fit(wants: Sequence[Want], resource: str) -> None:
    """Raise PlacementError when the cluster cannot hold the bundles even if nothing else ran on it."""
    hosts = [Host(n["NodeID"], n["NodeManagerAddress"], n["Resources"].get(resource, 0)) for n in living_nodes()]
    if missing := shortage(wants, resource, hosts):
        raise PlacementError(f"the job {missing}. Add nodes, or choose a smaller layout")


def _wait(group: PlacementGroup, wants: Sequence[Want], resource: str, wait_s: float) -> None:
    needed = sum(w.amount for w in wants)
    end_s = time.monotonic() + wait_s
    told = False
    while not group.wait(max(0.0, min(LOOK_S, end_s - time.monotonic()))):
        refuse_what_cannot_fit(wants, resource)
        free = ray.available_resources().get(resource, 0)
        busy = f"the job needs {needed:g} {resource}, {free:g} of {ray.cluster_resources().get(resource, 0):g} are free"
        if time.monotonic() >= end_s:
            raise PlacementError(f"{busy}; gave up after {wait_s:g} s. Stop other jobs, or choose a smaller layout")
        if not told:
            log.warning("%s; waiting up to %g s for other jobs to end", busy, wait_s)
        told = True


def _is_node_id(name: str) -> bool:
    return len(name) == 56 and all(c in "0123456789abcdef" for c in name)


def _device_kind(nodes: Sequence[dict[str, Any]], resource: str) -> str:
    """The catalog's name of the devices."""
    if resource == "CPU":
        return "cpu"
    found = sorted({r.removeprefix("accelerator_type:") for n in nodes for r in n["Resources"] if r.startswith("accelerator_type:")})
    kinds = {DEVICE_KINDS.get(name, "") for name in found}
    if len(kinds) != 1 or "" in kinds:
        names = ", ".join(found) or "no name from Ray"
        raise PlacementError(f"cannot tell what the cluster's GPUs are ({names}): describe them in the job's `cluster:` section")
    return kinds.pop()
