"""The connected cluster as it stands: every node, what is free of it, which job holds the rest, and who waits.

placement groups, by name ──▶ rayplane-JOB: held on its nodes       rayplane-waits …: a ticket of the line
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray._private.state import available_resources_per_node
from ray.util.placement_group import placement_group_table

from rayplane.errors import PlacementError
from rayplane.runtime.hardware.machines import Machine, doubts
from rayplane.runtime.ray.cluster import living_nodes, node_names
from rayplane.runtime.ray.discovery import look, machine, resource_of
from rayplane.runtime.ray.places import JOB
from rayplane.runtime.ray.queue import Ticket, waiting


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node now."""

    machine: Machine
    address: str
    free: int
    """Devices that nobody holds."""
    held: Mapping[str, int] = field(default_factory=dict)
    """Devices by job; `other` are those in use that no job has reserved."""


@dataclass(frozen=True, slots=True)
class Survey:
    """A cluster now."""

    resource: str
    """GPU, or CPU where it has none."""
    nodes: tuple[NodeState, ...]
    waiting: tuple[Ticket, ...] = ()
    notes: tuple[str, ...] = ()


def survey() -> Survey:
    """Of the connected cluster."""
    records = living_nodes()
    resource, names, available = resource_of(records), node_names(records), available_resources_per_node()
    with_gpus = [record["NodeID"] for record in records if record["Resources"].get("GPU", 0) >= 1]
    seen, held = look(with_gpus), _held(resource)
    nodes, notes = [], []
    for record in records:
        node_id, name = record["NodeID"], names[record["NodeID"]]
        found, note = _machine(record, name, resource, seen)
        free = min(found.devices, int(available.get(node_id, {}).get(resource, 0)))
        jobs = dict(held.get(node_id, {}))
        if (other := found.devices - free - sum(jobs.values())) > 0:
            jobs["other"] = other
        nodes.append(NodeState(found, record["NodeManagerAddress"], free, jobs))
        notes += [note] if note else []
    return Survey(resource, tuple(nodes), tuple(waiting()), (*notes, *doubts([node.machine for node in nodes])))


def _machine(record: dict[str, Any], name: str, resource: str, seen: Mapping[str, Any]) -> tuple[Machine, str]:
    """The node, and what is not known of it: here that is no error."""
    devices = int(record["Resources"].get(resource, 0))
    if not devices:
        return Machine(name, 0, "cpu", labels=record["Labels"]), ""
    hardware = seen.get(record["NodeID"])
    try:
        return machine(record, name, resource, hardware), ""
    except PlacementError as error:
        return Machine(name, devices, "", labels=record["Labels"], hardware=hardware), str(error)


def _held(resource: str) -> dict[str, Counter[str]]:
    """Devices by node id and job."""
    out: dict[str, Counter[str]] = {}
    for group in placement_group_table().values():
        name = group["name"].removeprefix(JOB) or group["placement_group_id"][:8]
        for bundle, node_id in group["bundles_to_node_id"].items() if group["state"] == "CREATED" else ():
            if amount := int(group["bundles"][bundle].get(resource, 0)):
                out.setdefault(node_id, Counter())[name] += amount
    return out
