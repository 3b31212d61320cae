"""Where a run happens: the cluster as it is found, and a group of ranks on it.

local    this machine's GPUs, else its CPU cores; ranks are children of this process
ray      the cluster of RAY_ADDRESS, else an embedded one on this machine
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import ray

from rayplane.cli.metrics import JobExporter
from rayplane.errors import PlacementError, Problem, SpecError
from rayplane.plan.machine.catalog import described, homogeneous
from rayplane.plan.machine.names import KINDS, kind_of
from rayplane.runtime.group import WorkerGroup, any_report
from rayplane.runtime.local import LocalGroup
from rayplane.runtime.ray import Exporters, RayGroup, connect, discover, host_names
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import JobSpec
from rayplane.telemetry.export import Exporter

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
NVIDIA_SMI_TIMEOUT_S = 20.0
MIB = 2**20


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


@dataclass(frozen=True, slots=True)
class Fleet:
    """A cluster that can run a job now."""

    cluster: ClusterSpec
    device: str
    """cpu or cuda."""
    new_group: Callable[[], WorkerGroup]
    """Makes groups on it: one for a job that trains, one for each replica and ingress of a service."""
    exporter: JobExporter
    """Is told of the job as a whole; the ranks' owners tell of every step."""
    targets: Callable[[], list[str]]
    """host:port of every metrics exporter."""
    nodes: Callable[[], tuple[str, ...]] = lambda: ("",)
    """Those where an ingress of a service is to be, as of now; one without a name where there is only this machine."""


@contextmanager
def open_fleet(runtime: Runtime, job: JobSpec) -> Iterator[Fleet]:
    """Find the cluster. Its groups are closed at the end. Raises SpecError where the job describes another cluster than there is."""
    with ExitStack() as closing:
        yield _open_local(job, closing) if runtime is Runtime.LOCAL else _open_ray(job, closing)


def _open_local(job: JobSpec, closing: ExitStack) -> Fleet:
    cluster = _as_described(job, this_machine())
    exporter = Exporter(job.name, job.metrics.port)
    closing.callback(exporter.close)

    def new_group() -> LocalGroup:
        group = LocalGroup(on_step=lambda message: exporter.observe(any_report(message)))
        closing.callback(group.close)
        return group

    return Fleet(cluster, device_type(cluster), new_group, exporter, lambda: [f"localhost:{exporter.port}"])


def _open_ray(job: JobSpec, closing: ExitStack) -> Fleet:
    closing.callback(ray.shutdown)
    connect()
    cluster = _as_described(job, discover(_described_kind(job)))
    exporters = Exporters(job.name, job.metrics.port)
    closing.callback(exporters.close)

    def new_group() -> RayGroup:
        group = RayGroup(exporters)
        closing.callback(group.close)
        return group

    return Fleet(cluster, device_type(cluster), new_group, exporters, lambda: exporters.targets, host_names)


def this_machine() -> ClusterSpec:
    """This machine's GPUs, else the cores that this process may use, as a cluster of one node."""
    name = socket.gethostname()
    if gpus := _gpus():
        kinds = Counter(kind for kind, _ in gpus)
        if len(kinds) > 1:
            raise PlacementError(f"this machine's GPUs must be of one kind, found: {', '.join(kinds)}; set CUDA_VISIBLE_DEVICES")
        return homogeneous({name: len(gpus)}, gpus[0][0], min(memory for _, memory in gpus), {})
    cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return homogeneous({name: cores}, "cpu", memory_bytes // cores, {})


def _gpus() -> list[tuple[str, int]]:
    """(catalog kind, bytes) of each GPU that CUDA_VISIBLE_DEVICES leaves."""
    try:
        answer = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    found = [(gpu_kind(name.strip()), int(mib) * MIB) for name, mib in rows]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if visible is None else found[: len([v for v in visible.split(",") if v.strip() and v.strip() != "-1"])]


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
    return replace(found, links=wanted.links)


def _machines(cluster: ClusterSpec) -> Counter[tuple[str, int]]:
    return Counter((n.kind, n.devices) for n in cluster.nodes)


def _in_words(cluster: ClusterSpec) -> str:
    return ", ".join(f"{number} x {devices} {kind}" for (kind, devices), number in sorted(_machines(cluster).items()))
