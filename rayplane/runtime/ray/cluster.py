"""The cluster as a whole: join it or start an embedded one, and list its nodes by the names that people call them.

host gpu-4 with one node      gpu-4
host gpu-5 with two           gpu-5/9a31f0, gpu-5/c07b22
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray

from rayplane.runtime.guardian import end, guarded
from rayplane.runtime.patience import GaveUp

NODE_LABEL = "ray.io/node-id"
OBJECT_STORE_BYTES = 100_000_000
"""Of an embedded Ray: nothing of a job goes through the object store."""
CONNECT_S = 1.0


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


def living_nodes() -> list[dict[str, Any]]:
    """Ray's records of the nodes that live, in a stable order."""
    return sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: (n["NodeManagerAddress"], n["NodeID"]))


def takes_connections(node: dict[str, Any]) -> bool:
    """Whether a node that Ray lists can be reached: it goes on listing a machine without network or power for half a minute."""
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), CONNECT_S).close()
    except OSError:
        return False
    return True


def node_ids() -> dict[str, str]:
    """Ray's id of each node that lives, by the names that people call it."""
    return {called: node["NodeID"] for node in living_nodes() for called in (node["NodeManagerHostname"], _twin_name(node))}


def host_names() -> tuple[str, ...]:
    """A node of each machine that lives, by name: several nodes may share one."""
    nodes = living_nodes()
    names, by_address = node_names(nodes), {n["NodeManagerAddress"]: n["NodeID"] for n in reversed(nodes)}
    return tuple(sorted(names[node_id] for node_id in by_address.values()))


def node_names(nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What people call each node, by Ray's id: its host name, with the beginning of the id where several nodes share a host."""
    count = Counter(n["NodeManagerHostname"] for n in nodes)
    return {n["NodeID"]: _twin_name(n) if count[n["NodeManagerHostname"]] > 1 else n["NodeManagerHostname"] for n in nodes}


def _twin_name(node: dict[str, Any]) -> str:
    return f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}"
