"""The devices of the connected cluster as of now, asked for again and again: a node is looked at when it is new.

ray.nodes() ─▶ known before: as it was then      new: its own words (discovery)      gone: forgotten
answering   ─▶ those whose raylet takes a connection: Ray lists a machine that has lost its network or its power for half a minute
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import ray

from rayplane.errors import PlacementError
from rayplane.runtime.hardware.machines import Machine, as_cluster
from rayplane.runtime.ray.cluster import living_nodes, node_ids, node_names, takes_connections
from rayplane.runtime.ray.discovery import look, machine, resource_of
from rayplane.spec.cluster import ClusterSpec

MOST_AT_ONCE = 32


class Census:
    """Of devices of one kind."""

    def __init__(self, kind: str | None):
        """`kind` is what the job says they are."""
        self._kind = kind
        self._resource = resource_of(living_nodes())
        self._known: dict[str, Machine] = {}

    def cluster(self) -> ClusterSpec:
        """All devices, whoever uses them. Raises PlacementError where none is left."""
        nodes = living_nodes()
        names = node_names(nodes)
        with_devices = {node["NodeID"]: node for node in nodes if node["Resources"].get(self._resource, 0) >= 1}
        new = [node_id for node_id in with_devices if node_id not in self._known]
        seen = look(new) if self._resource == "GPU" and new else {}
        fresh = {i: machine(with_devices[i], names[i], self._resource, seen.get(i), self._kind) for i in new}
        self._known = {i: fresh.get(i) or self._known[i] for i in with_devices}
        if not self._known:
            raise PlacementError(f"no node of the cluster has a {self._resource} any more")
        return as_cluster(list(self._known.values()))

    def free(self) -> int:
        """Devices that nobody uses."""
        return int(ray.available_resources().get(self._resource, 0))

    def answering(self, names: Iterable[str]) -> frozenset[str]:
        """Which of these nodes live and can be reached."""
        ids, nodes = node_ids(), {node["NodeID"]: node for node in living_nodes()}
        listed = [name for name in names if ids.get(name) in nodes]
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            heard = pool.map(takes_connections, [nodes[ids[name]] for name in listed])
            return frozenset(name for name, there in zip(listed, heard, strict=True) if there)
