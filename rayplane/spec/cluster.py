"""Where a job may run: nodes, the islands that join their devices, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayplane.spec.profile import Profile

Reach = Literal["island", "rack", "anywhere"]
"""How far apart the ranks of a tp group may be."""
REACHES: tuple[Reach, ...] = ("island", "rack", "anywhere")
"""From near to far."""


@dataclass(frozen=True, slots=True)
class Link:
    """A connection as one device sees it: bandwidth per direction and the cost of a message of no length."""

    gbytes_s: float
    latency_us: float


@dataclass(frozen=True, slots=True)
class Links:
    """The three distances: within an island (NVLink), within a node (PCIe, shared memory), across nodes (fabric)."""

    island: Link
    node: Link
    fabric: Link


@dataclass(frozen=True, slots=True)
class Node:
    """One host. Nodes with the same `island` have their devices joined by NVLink or the like; by default each is its own."""

    name: str
    devices: int
    kind: str
    island: str
    memory_bytes: int
    """Memory of one device."""
    rack: str = ""
    """Nodes that name the same rack are near each other; without a name a node is by itself."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The machines a plan is made for."""

    nodes: tuple[Node, ...]
    links: Links
    profile: Profile | None = None
    """What was measured of it."""

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return sum(n.devices for n in self.nodes)

    @property
    def islands(self) -> dict[str, tuple[Node, ...]]:
        """Nodes by island, in the order they are listed."""
        out: dict[str, tuple[Node, ...]] = {}
        for node in self.nodes:
            out[node.island] = (*out.get(node.island, ()), node)
        return out

    @property
    def memory_bytes(self) -> int:
        """Memory of the smallest device."""
        return min(n.memory_bytes for n in self.nodes)
