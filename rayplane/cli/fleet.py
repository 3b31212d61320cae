"""Where a run happens: the cluster as it is found, and a group of ranks on it.

local    this machine's GPUs, else its CPU cores; ranks are children of this process
ray      the cluster of RAY_ADDRESS, else an embedded one on this machine
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import ray

from rayplane.cli.devices import Supply
from rayplane.cli.metrics import JobExporter
from rayplane.errors import PlacementError, Problem, SpecError
from rayplane.plan.machine.catalog import described
from rayplane.plan.machine.names import KINDS, kind_of
from rayplane.runtime.group import WorkerGroup, any_report
from rayplane.runtime.hardware.host import this_hardware, visible
from rayplane.runtime.hardware.machines import Machine, as_cluster
from rayplane.runtime.local import LocalGroup
from rayplane.runtime.ray import Census, Exporters, OnBound, RayGroup, Terms, as_planned, connect, discover, everywhere, host_names
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import JobSpec
from rayplane.telemetry.export import Exporter

log = logging.getLogger(__name__)


class Runtime(StrEnum):
    """What starts the ranks."""

    RAY = "ray"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Options:
    """Of `rayplane run`."""

    runtime: Runtime
    fresh: bool
    """Whether to start over; what is in the job's folder is kept under another name."""
    profile: str


class NewGroup(Protocol):
    """Makes groups: one for a job that trains, one for each replica and ingress of a service."""

    def __call__(self, on_bound: OnBound = as_planned) -> WorkerGroup:
        """One that tells where its stages go, when that is not where they were planned."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A cluster that can run a job now."""

    cluster: ClusterSpec
    device: str
    """cpu or cuda."""
    new_group: NewGroup
    exporter: JobExporter
    """Is told of the job as a whole; the ranks' owners tell of every step."""
    targets: Callable[[], list[str]]
    """host:port of every metrics exporter."""
    nodes: Callable[[], tuple[str, ...]] = lambda: ("",)
    """Those where an ingress of a service is to be, as of now; one without a name where there is only this machine."""
    everywhere: Callable[[Callable[[], None]], None] = lambda errand: errand()
    """Runs an errand on every machine."""
    moving: Supply | None = None
    """What can be said of the devices at any time, where they can change."""

    @property
    def supply(self) -> Supply:
        """The same, where nothing changes too."""
        return self.moving or Supply(lambda: self.cluster)


@contextmanager
def open_fleet(runtime: Runtime, job: JobSpec) -> Iterator[Fleet]:
    """Find the cluster. Its groups are closed at the end. Raises SpecError where the job describes another cluster than there is."""
    with ExitStack() as closing:
        yield _open_local(job, closing) if runtime is Runtime.LOCAL else _open_ray(job, closing)


def _open_local(job: JobSpec, closing: ExitStack) -> Fleet:
    cluster = _as_described(job, this_machine())
    exporter = Exporter(job.name, job.metrics.port)
    closing.callback(exporter.close)

    def new_group(on_bound: OnBound = as_planned) -> LocalGroup:
        group = LocalGroup(on_step=lambda message: exporter.observe(any_report(message)))
        closing.callback(group.close)
        return group

    return Fleet(cluster, device_type(cluster), new_group, exporter, lambda: [f"localhost:{exporter.port}"])


def _open_ray(job: JobSpec, closing: ExitStack) -> Fleet:
    closing.callback(ray.shutdown)
    connect()
    cluster = _as_described(job, discover(_described_kind(job)))
    terms = Terms(job.limits.fallback, job.limits.priority, cluster.nodes)
    exporters = Exporters(job.name, job.metrics.port)
    closing.callback(exporters.close)

    def new_group(on_bound: OnBound = as_planned) -> RayGroup:
        group = RayGroup(exporters, terms=terms, on_bound=on_bound)
        closing.callback(group.close)
        return group

    census, targets = Census(_described_kind(job)), lambda: exporters.targets
    supply = Supply(census.cluster, census.free, census.answering)
    return Fleet(cluster, device_type(cluster), new_group, exporters, targets, host_names, everywhere, supply)


def this_machine() -> ClusterSpec:
    """This machine's GPUs, else the cores that this process may use, as a cluster of one host."""
    return as_cluster([machine_here()])


def machine_here() -> Machine:
    """This machine with the GPUs that CUDA_VISIBLE_DEVICES leaves, else with its cores."""
    name, hardware = socket.gethostname(), visible(this_hardware(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not hardware.gpus:
        return Machine(name, hardware.cores, "cpu", hardware.memory_bytes // hardware.cores, hardware=hardware)
    kinds = Counter(gpu_kind(gpu.name) for gpu in hardware.gpus)
    if len(kinds) > 1:
        raise PlacementError(f"this machine's GPUs must be of one kind, found: {', '.join(kinds)}; set CUDA_VISIBLE_DEVICES")
    memory_bytes = min(gpu.memory_bytes for gpu in hardware.gpus)
    return Machine(name, len(hardware.gpus), next(iter(kinds)), memory_bytes, hardware=hardware)


def gpu_kind(name: str) -> str:
    """The catalog's name of a GPU, as its driver calls it."""
    if kind := kind_of(name):
        return kind
    known = ", ".join(kind for _, kind in KINDS)
    raise PlacementError(
        f"GPU '{name}' is not in the device catalog; known: {known}. Hide it with CUDA_VISIBLE_DEVICES= to run on the CPU"
    )


def device_type(cluster: ClusterSpec) -> str:
    """cpu or cuda."""
    return "cpu" if all(n.kind == "cpu" for n in cluster.nodes) else "cuda"


def _described_kind(job: JobSpec) -> str | None:
    kinds = {n.device for n in job.cluster.nodes} if job.cluster != "auto" else set()
    return kinds.pop() if len(kinds) == 1 else None


def _as_described(job: JobSpec, found: ClusterSpec) -> ClusterSpec:
    """The found cluster, with the links that the job describes; the machines must be those it describes."""
    if job.cluster == "auto":
        return found
    wanted = described(job.cluster)
    if _machines(wanted) != _machines(found):
        message = (
            f"describes {_in_words(wanted)}, but this cluster has {_in_words(found)}; "
            "write `cluster: auto` to run here, or use rayplane plan to plan for the described one"
        )
        raise SpecError(Problem(message, "cluster"))
    if _islands(wanted) != _islands(found):
        log.warning(
            "cluster: describes %s, but found were %s; those that were found are used. Nodes of one NVLink domain say so with the "
            "label rayplane.io/island",
            _islands_in_words(wanted),
            _islands_in_words(found),
        )
    return replace(found, links=wanted.links)


def _machines(cluster: ClusterSpec) -> Counter[tuple[str, int]]:
    """How many there are of each kind and number of devices; a node's islands are one machine."""
    devices = Counter[tuple[str, str]]()
    for node in cluster.nodes:
        devices[node.name, node.kind] += node.devices
    return Counter((kind, number) for (_, kind), number in devices.items())


def _in_words(cluster: ClusterSpec) -> str:
    return ", ".join(f"{number} x {devices} {kind}" for (kind, devices), number in sorted(_machines(cluster).items()))


def _islands(cluster: ClusterSpec) -> Counter[int]:
    """How many islands there are of each number of devices."""
    return Counter(sum(node.devices for node in nodes) for nodes in cluster.islands.values())


def _islands_in_words(cluster: ClusterSpec) -> str:
    sizes = sorted(_islands(cluster).items(), reverse=True)
    return ", ".join(f"{number} island{'s' if number > 1 else ''} of {devices}" for devices, number in sizes)
