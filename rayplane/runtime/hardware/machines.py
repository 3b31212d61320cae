"""Machines that were found, as a ClusterSpec: each node's island from the best source that says something of it.

source                                                   island
label rayplane.io/island                                 what it says; nodes that say the same are one
NVML's fabric, the same of all GPUs of a node            cluster.clique; nodes of the same are one
NVLinks of `topo -m`, some GPUs of a node joined         a part of the node for each group that is joined, NODE/FIRST_GPU
nothing                                                  the node

So a node of which nothing is said is an island of its own, and by the label rayplane.io/rack alone a part of a rack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rayplane.plan.machine.catalog import common_links, device
from rayplane.runtime.hardware.host import Hardware
from rayplane.spec.cluster import ClusterSpec, Node

ISLAND_LABEL, RACK_LABEL = "rayplane.io/island", "rayplane.io/rack"


@dataclass(frozen=True, slots=True)
class Machine:
    """A node that was found. `kind` is the catalog's name of its devices."""

    name: str
    devices: int
    kind: str
    memory_bytes: int = 0
    """Of one device; 0: as the catalog says."""
    labels: Mapping[str, str] = field(default_factory=dict)
    hardware: Hardware | None = None

    @property
    def fabric(self) -> str:
        """The NVLink domain that all its GPUs are in, if they are."""
        domains = {gpu.fabric for gpu in self.hardware.gpus} if self.hardware else set()
        return domains.pop() if len(domains) == 1 else ""

    @property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Its GPUs by island, where NVLink joins some but not all."""
        islands = self.hardware.islands if self.hardware and self.kind != "cpu" else ()
        joined = any(len(island) > 1 for island in islands)
        return islands if joined and sum(map(len, islands)) == self.devices else ()


def as_cluster(machines: Sequence[Machine]) -> ClusterSpec:
    """The nodes in topology order: by rack, island and name. A single machine's parts are as far from each other as its bus.

    Devices of a kind count as alike: each has the memory of the smallest.
    """
    found = [node for machine in machines for node in nodes_of(machine)]
    least = {kind: min(node.memory_bytes for node in found if node.kind == kind) for kind in {node.kind for node in found}}
    nodes = tuple(replace(node, memory_bytes=least[node.kind]) for node in sorted(found, key=topology_order))
    links = common_links(nodes)
    parted = len(nodes) > len(machines) == 1
    return ClusterSpec(nodes, replace(links, fabric=links.node) if parted else links)


def nodes_of(machine: Machine) -> Iterator[Node]:
    """Those that stand for a machine: one for each of its islands."""
    known = device(machine.kind)
    whole = Node(
        machine.name,
        machine.devices,
        known.name,
        machine.labels.get(ISLAND_LABEL) or machine.fabric or machine.name,
        machine.memory_bytes or known.memory_bytes,
        machine.labels.get(RACK_LABEL, ""),
    )
    if whole.island == machine.name and len(machine.parts) > 1:
        for part in machine.parts:
            yield replace(whole, devices=len(part), island=f"{machine.name}/{part[0]}")
    else:
        yield whole


def topology_order(node: Node) -> tuple[object, ...]:
    """Numbers in names count as numbers: gpu-2 comes before gpu-10."""
    return tuple(_natural(text) for text in (node.rack or node.name, node.island, node.name))


def doubts(machines: Sequence[Machine]) -> list[str]:
    """Where two sources disagree, with what both say and which is used."""
    out = []
    by_label: dict[str, dict[str, str]] = {}
    for machine in machines:
        seen = len(machine.hardware.gpus) if machine.hardware and machine.kind != "cpu" else 0
        if seen and seen != machine.devices:
            out.append(f"node {machine.name} offers {machine.devices} GPUs to Ray, its driver has {seen}; Ray's number is used")
        if (label := machine.labels.get(ISLAND_LABEL)) and machine.fabric:
            by_label.setdefault(label, {})[machine.name] = machine.fabric
    for label, fabrics in by_label.items():
        if len(set(fabrics.values())) > 1:
            said = ", ".join(f"{name} is in {fabric}" for name, fabric in fabrics.items())
            out.append(f"nodes are labelled {ISLAND_LABEL}={label}, but NVML says that {said}; the label is used")
    return out


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", text))
