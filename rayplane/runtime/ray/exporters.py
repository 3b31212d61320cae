"""The metrics of a job on a cluster: one exporter per node that has ranks, and one on the driver's node for the job as a whole.

driver ──state, restarts, prediction, checkpoints──▶ NodeExporter of its node ──▶ /metrics
StageActor ──every rank's steps────────────────────▶ NodeExporter of its node ──▶ /metrics        fire and forget
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayplane.errors import RayplaneError
from rayplane.runtime.child import die_with_parent
from rayplane.runtime.patience import never
from rayplane.runtime.ray.calls import answers
from rayplane.telemetry.export import Exporter


class NodeExporter(Exporter):
    """An Exporter as an actor."""

    def __init__(self, run: str, port: int):
        die_with_parent()
        super().__init__(run, port)

    def listens_on(self) -> int:
        """The port."""
        return self.port


class Exporters:
    """Makes exporters where they are needed and tells them of the job; all end with `close`."""

    def __init__(self, run: str, port: int):
        """`port`: on every node; 0: a free one."""
        self._run, self._port = run, port
        self._actors: dict[str, Any] = {}
        self._ports: dict[str, tuple[str, Any]] = {}
        self._making = threading.Lock()
        self._job = self.on(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())

    def on(self, node_id: str, address: str) -> Any:
        """The exporter of a node, created when it is the first of its node."""
        with self._making:
            if node_id not in self._actors:
                there = NodeAffinitySchedulingStrategy(node_id, soft=False)
                actor: Any = ray.remote(NodeExporter)
                made = actor.options(scheduling_strategy=there, num_cpus=0, max_restarts=0).remote(self._run, self._port)
                self._actors[node_id], self._ports[node_id] = made, (address, made.listens_on.remote())
            return self._actors[node_id]

    def wait(self, give_up: Callable[[], bool]) -> None:
        """Until all listen. Raises RayplaneError when the port cannot be had, GaveUp."""
        for address, port in tuple(self._ports.values()):
            try:
                answers([port], "listening", give_up)
            except RayplaneError as error:
                raise RayplaneError(f"metrics.port {self._port} cannot be served on {address}: {error}") from error

    @property
    def targets(self) -> list[str]:
        """host:port of every exporter."""
        self.wait(never)
        return sorted(f"{address}:{ray.get(port)}" for address, port in self._ports.values())

    def set_state(self, name: str) -> None:
        """The job is in this state now."""
        self._job.set_state.remote(name)

    def set_predicted(self, step_s: float) -> None:
        """What the planner expects of a step."""
        self._job.set_predicted.remote(step_s)

    def saved(self) -> None:
        """A checkpoint is complete."""
        self._job.saved.remote()

    def restarted(self) -> None:
        """All ranks were started anew, perhaps elsewhere."""
        self._job.restarted.remote()
        for actor in self._actors.values():
            actor.forget_ranks.remote()

    def close(self) -> None:
        """End them; may be called twice."""
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors, self._ports = {}, {}
