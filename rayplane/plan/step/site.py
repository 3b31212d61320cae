"""What the ranks of a pool compute with and talk over: its device, as measured where it was, its islands and its links.

                 h100-sxm    a100-80gb    both together        a link that the job names replaces all three
island GB/s      450         300          300
fabric GB/s      50          25           25
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayplane.plan.machine.catalog import DeviceKind, common_links
from rayplane.plan.machine.network import Network
from rayplane.plan.machine.topology import Topology
from rayplane.plan.step.profile import device_of
from rayplane.plan.step.runs import Fleet, Pool
from rayplane.spec.cluster import ClusterSpec, Link, Links


@dataclass(frozen=True, slots=True)
class Site:
    """A pool, ready for pricing."""

    device: DeviceKind
    network: Network
    topology: Topology

    def hop_s(self, num_bytes: float, inside: bool) -> float:
        """Of a message between stages."""
        return self.network.p2p_s(num_bytes, inside)


def sites(cluster: ClusterSpec, of: Fleet, precision: str) -> tuple[Site, ...]:
    """One for each pool of a fleet."""
    return tuple(_site(_cluster_of(pool, cluster, of), pool, precision) for pool in of.pools)


def _site(cluster: ClusterSpec, pool: Pool, precision: str) -> Site:
    device = device_of(cluster, precision)
    return Site(device, Network(cluster.links, device), pool.topology)


def _cluster_of(pool: Pool, cluster: ClusterSpec, of: Fleet) -> ClusterSpec:
    """Its nodes, with a profile only where that was measured on such devices."""
    if pool is of.pools[-1]:
        return cluster
    profile = cluster.profile if cluster.profile and cluster.profile.hardware.device == pool.kind else None
    return replace(cluster, nodes=pool.nodes, links=_links(pool, cluster), profile=profile)


def _links(pool: Pool, cluster: ClusterSpec) -> Links:
    """Those of its own kind at every distance where the job and the profile say nothing else."""
    common, own = common_links(cluster.nodes), common_links(pool.nodes)

    def link(distance: str) -> Link:
        found: Link = getattr(cluster.links, distance)
        usual: Link = getattr(own, distance)
        return usual if found == getattr(common, distance) else found

    return Links(link("island"), link("node"), link("fabric"))
