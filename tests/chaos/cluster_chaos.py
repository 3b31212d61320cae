"""A training job on a Ray cluster of two nodes, under a script: run in a process of its own, with a Ray of its own.

FOLDER SEED COUNT KIND…       prints a line of JSON: steps, losses of each, restarts, and what the job left: places, busy CPUs
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import ray
from disturbances import script
from dummies import eventually
from evidence import telling
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from training_chaos import ChaosRun, TrainingChaos

STORE_BYTES = 80_000_000
FREED_S = 20.0


class Second:
    """The cluster's other node, which holds one of two ranks."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self.add()

    def remove(self) -> None:
        """At once, as by a power failure."""
        self._cluster.remove_node(self._node, allow_graceful=False)

    def add(self) -> None:
        """A new one in its place."""
        self._node = self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)


def main(folder: Path, seed: int, count: int, kinds: tuple[str, ...]) -> None:
    with ExitStack() as closing:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE_BYTES})
        closing.callback(cluster.shutdown)
        environment, strikes = {"RAY_ADDRESS": cluster.address}, script(seed, kinds, count)
        chaos = TrainingChaos(folder, lambda path: ChaosRun(path, environment=environment), Second(cluster))
        with telling(seed, strikes, chaos.log):
            steps = chaos.play(strikes)
        told = {"steps": steps, "losses": {step: sorted(of) for step, of in chaos.losses().items()}, "restarts": chaos.restarts()}
        ray.init(cluster.address, log_to_driver=False)
        closing.callback(ray.shutdown)
        eventually(lambda: not _busy(), FREED_S)
        places = [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
        print(json.dumps({**told, "places": places, "busy": _busy()}))


def _busy() -> float:
    """How many CPUs are not free."""
    return ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), tuple(sys.argv[4:]))
