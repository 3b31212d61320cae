"""A host's cores as devices: a serving rank may have several of them, and a rank of n cores is one device n times as fast.

4 cores        ranks of 1 core: 4 devices        of 2 cores: 2 devices        of 4 cores: 1 device
a GPU          is always a rank of its own
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayplane.plan.machine.catalog import DeviceKind, slowest
from rayplane.plan.machine.topology import Topology, topology
from rayplane.plan.step.profile import device_of
from rayplane.spec.cluster import ClusterSpec


@dataclass(frozen=True, slots=True)
class Machines:
    """A cluster as ranks see it, what each of its devices is like, and how many cores that has."""

    cluster: ClusterSpec
    device: DeviceKind
    cores: int
    num_devices: int
    memory_bytes: int
    """Of the smallest device."""
    islands: Topology

    @classmethod
    def of(cls, cluster: ClusterSpec, device: DeviceKind, cores: int = 1) -> Machines:
        """With what a search asks for again and again."""
        return cls(cluster, device, cores, cluster.num_devices, cluster.memory_bytes, topology(cluster))


def machines(cluster: ClusterSpec, precision: str) -> tuple[Machines, ...]:
    """Every way to give cores to ranks, the most cores first; one for devices that are none."""
    cluster, kind = priced_by(cluster), slowest(cluster)
    if not all(node.kind == kind.name for node in cluster.nodes) or not kind.is_host:
        return (Machines.of(cluster, device_of(cluster, precision)),)
    most = max(node.devices for node in cluster.nodes)
    sizes = sorted({most // ranks for ranks in range(1, most + 1)}, reverse=True)
    return tuple(_of_cores(cluster, kind, cores) for cores in sizes)


def priced_by(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with what serving is priced by. What was measured of GPUs holds for it too; of cores it does not, for they are
    measured with the kernels of training, which serving does not use.
    """
    return replace(cluster, profile=None) if slowest(cluster).is_host else cluster


def _of_cores(cluster: ClusterSpec, kind: DeviceKind, cores: int) -> Machines:
    nodes = tuple(
        replace(node, devices=node.devices // cores, memory_bytes=node.memory_bytes * cores)
        for node in cluster.nodes
        if node.devices >= cores
    )
    faster = replace(
        kind,
        memory_bytes=kind.memory_bytes * cores,
        hbm_gbytes_s=kind.hbm_gbytes_s * cores,
        peak_flops={precision: cores * flops for precision, flops in kind.peak_flops.items()},
    )
    return Machines.of(replace(cluster, nodes=nodes), faster, cores)
