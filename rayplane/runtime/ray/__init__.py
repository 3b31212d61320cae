"""The Ray side of the runtime: joining a cluster, seeing what it has, and running a WorkerGroup on it."""

from rayplane.runtime.ray.cluster import connect, discover, host_names
from rayplane.runtime.ray.exporters import Exporters
from rayplane.runtime.ray.group import RayGroup

__all__ = ["Exporters", "RayGroup", "connect", "discover", "host_names"]
