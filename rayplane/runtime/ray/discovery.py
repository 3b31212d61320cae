"""The devices of the connected cluster, as its nodes describe them: a small task on each node with GPUs, besides what Ray knows.

ray.nodes(): resources, labels ─┐
task on the node: this_hardware ┴─▶ Machine per node ──▶ ClusterSpec          where two sources disagree, a warning with both
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayplane.errors import PlacementError
from rayplane.plan.machine.names import kind_of
from rayplane.runtime.hardware.host import Hardware, this_hardware
from rayplane.runtime.hardware.machines import Machine, as_cluster, doubts
from rayplane.runtime.ray.cluster import living_nodes, node_names
from rayplane.spec.cluster import ClusterSpec

ACCELERATOR = "accelerator_type:"
"""Begins the resource by which Ray names a node's GPUs."""
LOOK_TIMEOUT_S = 30.0
"""A node that has not described itself by then is taken as Ray describes it."""

log = logging.getLogger(__name__)


def discover(kind: str | None = None) -> ClusterSpec:
    """The devices of the connected cluster: its GPUs, or its CPUs when it has none. `kind` is what the job says they are."""
    found = machines(living_nodes(), kind)
    for doubt in doubts(found):
        log.warning("%s", doubt)
    return as_cluster(found)


def resource_of(nodes: Sequence[dict[str, Any]]) -> str:
    """What the cluster's devices are to Ray."""
    return "GPU" if any(node["Resources"].get("GPU", 0) >= 1 for node in nodes) else "CPU"


def machines(nodes: Sequence[dict[str, Any]], kind: str | None = None) -> list[Machine]:
    """The nodes that have devices. Raises PlacementError where there are none, or of an unknown kind."""
    resource, names = resource_of(nodes), node_names(nodes)
    with_devices = [node for node in nodes if node["Resources"].get(resource, 0) >= 1]
    if not with_devices:
        raise PlacementError("the Ray cluster has no node with a GPU or CPU; start one with `ray start --address=…` or add workers")
    seen = look([node["NodeID"] for node in with_devices]) if resource == "GPU" else {}
    return [machine(node, names[node["NodeID"]], resource, seen.get(node["NodeID"]), kind) for node in with_devices]


def machine(node: Mapping[str, Any], name: str, resource: str, hardware: Hardware | None, kind: str | None = None) -> Machine:
    """From Ray's record of a node and what the node says of itself."""
    resources = node["Resources"]
    devices = int(resources[resource])
    if resource == "CPU":
        return Machine(name, devices, "cpu", int(resources.get("memory", 0)) // devices, node["Labels"])
    gpus = hardware.gpus if hardware else ()
    said = sorted({gpu.name for gpu in gpus} or {r.removeprefix(ACCELERATOR) for r in resources if r.startswith(ACCELERATOR)})
    kinds = {kind} if kind else {kind_of(gpu) for gpu in said}
    if len(kinds) != 1 or "" in kinds:
        what = ", ".join(said) or "no name from Ray or its driver"
        raise PlacementError(f"cannot tell what the GPUs of node {name} are ({what}): describe them in the job's `cluster:` section")
    memory_bytes = min((gpu.memory_bytes for gpu in gpus), default=0)
    return Machine(name, devices, kinds.pop(), memory_bytes, node["Labels"], hardware)


def look(node_ids: Sequence[str]) -> dict[str, Hardware]:
    """What nodes say of themselves, by id; a node that does not answer in time, or whose rayplane is another, is left out."""
    task: Any = ray.remote(this_hardware)
    calls = {}
    for node_id in node_ids:
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        calls[task.options(scheduling_strategy=there, num_cpus=0, max_retries=0).remote()] = node_id
    ready, late = ray.wait(list(calls), num_returns=len(calls), timeout=LOOK_TIMEOUT_S)
    for call in late:
        ray.cancel(call, force=True)
    found = {}
    for call in ready:
        try:
            found[calls[call]] = ray.get(call)
        except RayError as error:
            log.info("node %s did not describe itself: %s", calls[call][:6], error)
    return found
