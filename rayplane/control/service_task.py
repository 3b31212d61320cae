"""What a controller of a service is to run, and how long it bears with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rayplane.control.berths import Berth, Place
from rayplane.control.relayout import Ask
from rayplane.control.way import Ability, Way
from rayplane.runtime.group import Launch, WorkerGroup
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot


@dataclass(frozen=True, slots=True)
class ServiceTask:
    """A service: what a replica and an ingress are, and how many there may be."""

    name: str
    directory: Path
    """The job's folder: state.json, events.jsonl, logs."""
    replica: Launch
    """Of one of them; its name, layout, place, log folder and its config's `replica`, `layout` and `threads` are set for each."""
    ingress: Launch
    """The same; its config gets the replicas, and its node's port once that is known."""
    way: Way
    """How they are cut to begin with."""
    replicas: int
    """To begin with."""
    devices: int
    """That there are."""
    place: Place
    ability: Callable[[Way], Ability]
    """Of a way; RayplaneError where replicas cannot be cut so, or may not."""
    restarts: int
    """In a row, without one that came to serve."""
    drain_s: float
    model: str
    """What requests call it."""
    ask: Ask | None = None
    """For another way under another load; None where the layout is fixed."""
    hold: bool = False
    """Whether requests may wait at the ingresses while the only replica moves."""
    start_timeout_s: float = 900.0
    """From a replica's start until it serves: imports, rendezvous, reading weights."""

    def replica_launch(self, number: int, way: Way, berth: Berth) -> Launch:
        """Of a replica at a berth."""
        launch, name = self.replica, f"replica-{number}"
        return replace(
            launch,
            name=f"{launch.name}/{name}",
            layout=way.layout,
            cores=way.cores,
            placement=berth.placement,
            devices=berth.devices[:: way.cores],
            log_dir=str(Path(launch.log_dir) / name),
            config={**launch.config, "replica": str(number), "layout": asdict(way.layout), "threads": way.cores},
        )

    def ingress_launch(self, node: str, port: int | None, replicas: list[dict[str, Any]]) -> Launch:
        """Of an ingress on a node; `port` is the one that it had before."""
        launch, name = self.ingress, f"ingress-{node}" if node else "ingress"
        known = {} if port is None else {"port": port}
        return replace(
            launch,
            name=f"{launch.name}/{name}",
            layout=Layout(),
            placement=Placement((Slot(0, 0, 0, (0,), node, ""),)),
            log_dir=str(Path(launch.log_dir) / name),
            config={**launch.config, "ingress": name, "replicas": replicas, **known},
        )


@dataclass(frozen=True, slots=True)
class Ground:
    """What a service runs on."""

    new_group: Callable[[], WorkerGroup]
    """A group for one replica or one ingress."""
    nodes: Callable[[], tuple[str, ...]]
    """Where an ingress is to be, as of now; one empty name where there is only this machine."""
