"""The simulated cluster of `recovery.py`, of which nodes are lost, and the processes on it.

head    node    node        two CPUs each; a job of four ranks leaves one of them spare
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

NODES, CPUS = 3, 2
STORE_BYTES = 80_000_000


class Machines:
    """Three nodes, of which the head always stays."""

    def __init__(self) -> None:
        self._cluster = Cluster(initialize_head=True, head_node_args=self._shape())
        self._nodes = [self._cluster.add_node(**self._shape()) for _ in range(NODES - 1)]

    @property
    def address(self) -> str:
        """For RAY_ADDRESS."""
        return str(self._cluster.address)

    def lose(self, pids: list[int]) -> None:
        """Remove, as a power failure would, a node that one of these processes runs on."""
        owners = {_ancestors(pid) for pid in pids}
        raylets = {node: {p.process.pid for p in node.all_processes["raylet"]} for node in self._nodes}
        (victim, *_) = [node for node, own in raylets.items() if any(own & of for of in owners)]
        self._cluster.remove_node(victim, allow_graceful=False)
        self._nodes.remove(victim)

    def replace(self) -> None:
        """A new node for the one that is gone."""
        self._nodes.append(self._cluster.add_node(**self._shape()))

    def close(self) -> None:
        """End all of it."""
        self._cluster.shutdown()

    @staticmethod
    def _shape() -> dict[str, Any]:
        return {"num_cpus": CPUS, "object_store_memory": STORE_BYTES, "include_dashboard": False}


def parent(pid: int) -> int:
    """The process that started one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _ancestors(pid: int) -> frozenset[int]:
    """All processes above one."""
    found = set[int]()
    while pid > 1:
        pid = parent(pid)
        found.add(pid)
    return frozenset(found)


def lives(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
