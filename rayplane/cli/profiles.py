"""Where profiles are kept: what `rayplane calibrate` measured of a cluster is found again by that cluster's nodes.

~/.cache/rayplane/cpu-2-1f3a9c2b.yaml          kind and number of devices, and a hash of the nodes' names
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated

import typer

from rayplane.errors import RayplaneError
from rayplane.plan.machine.catalog import slowest
from rayplane.plan.step.profile import with_profile
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.profile import Profile, profile_text, read_profile

NONE = "none"
CACHE = Path(".cache") / "rayplane"
"""In the user's home."""

ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile", help="What `rayplane calibrate` measured: a file, or none. By default that of the cluster that is found."
    ),
]


OWN = "own"

SaveOption = Annotated[
    str,
    typer.Option(
        "--save-profile",
        help="Keep what --observed has taught: a file for --profile, or own, which plan and run find for this cluster by themselves.",
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


def keep(corrected: ClusterSpec, began: Profile | None, chosen: str) -> Path:
    """Write a corrected profile. Raises RayplaneError where the file holds another than the one that the correction began from."""
    path, profile = path_of(corrected) if chosen == OWN else Path(chosen), corrected.profile
    assert profile is not None, "it was corrected"
    if os.path.exists(path) and read_profile(path) != began:  # noqa: PTH110 (a name too long is not there, and no error here)
        message = (
            f"{path} holds another profile than this plan began from, and would be lost; plan with --profile {path}, or name another"
        )
        raise RayplaneError(message)
    write_profile(path, profile_text(profile), "--save-profile")
    return path


def write_profile(path: Path, text: str, option: str) -> None:
    """Aside, and renamed, so that a reader never sees half of it; without a text only to see whether it can be done."""
    aside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        if text:
            aside.replace(path)
        else:
            aside.unlink()
    except OSError as error:
        reason = f"{path.parent} is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise RayplaneError(f"the profile cannot be written to {path}: {reason}; name another file with {option}") from None
