"""What a job that ran out of memory teaches: a device has no room for what the planner took for enough.

    device 16.0 GB    predicted 11.2 GB, and it was too much    ──▶ 4.8 GB more are taken that no term knows: they count as fixed

So neither that layout fits any more, nor any that needs as much.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayplane.plan.measured.correct import empty_profile
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.step.profile import device_of
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Of a layout: the memory that a rank takes besides its model from now on, and the table that was wrong."""

    fixed_bytes: int
    said: str


def shortfall(pricer: Pricer, layout: Layout) -> Shortfall:
    """Of a layout that was too large for some device."""
    outline = pricer.counted(pricer.outline(layout))
    unknown = max(0, outline.room_bytes - outline.fullest.total) + 1
    terms = ", ".join(f"{name} {gigabytes(size)}" for name, size in outline.fullest.terms().items())
    known = f"{layout} was to need {gigabytes(outline.fullest.total)} of {gigabytes(outline.room_bytes)} per device ({terms})"
    return Shortfall(pricer.device.fixed_bytes + unknown, known)


def with_fixed_bytes(cluster: ClusterSpec, fixed_bytes: int, precision: str) -> ClusterSpec:
    """The cluster, where a rank takes at least so much besides its model."""
    profile = cluster.profile or empty_profile(cluster)
    least = max(fixed_bytes, device_of(cluster, precision).fixed_bytes)
    return replace(cluster, profile=profile.model_copy(update={"fixed_bytes": least}))
