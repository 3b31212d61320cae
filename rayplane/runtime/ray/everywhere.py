"""A short errand on every machine of the cluster: one light task per node, and nobody waits long for a node that does not answer.

driver ──action──▶ node a, node b, …
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayplane.runtime.ray.cluster import living_nodes

ERRAND_TIMEOUT_S = 30.0


def everywhere(action: Callable[[], None], timeout_s: float = ERRAND_TIMEOUT_S) -> None:
    """Run the action on each node that lives; one that fails there, or has not come so far, is passed over."""
    task: Any = ray.remote(_run)
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in living_nodes()]
    calls = [task.options(scheduling_strategy=where, num_cpus=0, max_retries=0).remote(action) for where in there]
    ray.wait(calls, num_returns=len(calls), timeout=timeout_s)


def _run(action: Callable[[], None]) -> None:
    action()
