"""Where profiles are kept: what `rayplane calibrate` measured of a cluster is found again by that cluster's nodes.

~/.cache/rayplane/cpu-2-1f3a9c2b.yaml          kind and number of devices, and a hash of the nodes' names
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from rayplane.plan.catalog import slowest
from rayplane.plan.profile import with_profile
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.profile import read_profile

NONE = "none"
CACHE = Path(".cache") / "rayplane"
"""In the user's home."""

ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile", help="What `rayplane calibrate` measured: a file, or none. By default that of the cluster that is found."
    ),
]


def path_of(cluster: ClusterSpec) -> Path:
    """Where a cluster's own profile is kept."""
    nodes = ",".join(sorted(f"{node.name}:{node.devices}" for node in cluster.nodes))
    digest = hashlib.sha256(nodes.encode()).hexdigest()[:8]
    return Path.home() / CACHE / f"{slowest(cluster).name}-{cluster.num_devices}-{digest}.yaml"


def profiled(cluster: ClusterSpec, chosen: str, found: bool) -> ClusterSpec:
    """The cluster with the profile that was chosen, else, if it was found and not described, with its own where there is one."""
    if chosen == NONE:
        return cluster
    path = Path(chosen) if chosen else path_of(cluster)
    if not chosen and not (found and path.is_file()):
        return cluster
    return with_profile(cluster, read_profile(path), str(path))
