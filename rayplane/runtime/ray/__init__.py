"""The Ray side of the runtime: joining a cluster, seeing what it has, and running a WorkerGroup on it."""

from rayplane.runtime.ray.census import Census
from rayplane.runtime.ray.cluster import connect, host_names
from rayplane.runtime.ray.discovery import discover
from rayplane.runtime.ray.everywhere import everywhere
from rayplane.runtime.ray.exporters import Exporters
from rayplane.runtime.ray.group import RayGroup
from rayplane.runtime.ray.places import OnBound, Terms, as_planned

__all__ = ["Census", "Exporters", "OnBound", "RayGroup", "Terms", "as_planned", "connect", "discover", "everywhere", "host_names"]
