"""The `cluster` section of a job file: a cluster described in words, as `plan/machine/catalog.py` makes it a ClusterSpec.

nodes: [{name: gpu, count: 8, device: h100-sxm, devices: 8}]
links: {fabric: {gbytes_s: 50, latency_us: 7}}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rayplane.spec.section import Section


class LinkSection(Section):
    """A link as one device sees it."""

    gbytes_s: Annotated[float, Field(ge=1e-6, le=10**6)]
    """Bandwidth per direction, 10^9 bytes per second."""
    latency_us: Annotated[float, Field(ge=0, le=10**9)]


class LinksSection(Section):
    """The links of a described cluster; what is left out comes from the device catalog."""

    island: LinkSection | None = None
    node: LinkSection | None = None
    fabric: LinkSection | None = None


class NodeSection(Section):
    """`count` equal nodes."""

    device: str
    """Device kind of the catalog, such as h100-sxm or cpu."""
    devices: Annotated[int, Field(gt=0, le=10**3)]
    """Devices per node."""
    count: Annotated[int, Field(gt=0, le=10**5)] = 1
    name: str = "node"
    """Nodes are called NAME-0, NAME-1, …; a single node just NAME."""
    island: str | None = None
    """Nodes that name the same island are one NVLink domain; by default each node is an island of its own."""
    memory_gb: Annotated[float, Field(ge=0.001, le=10**6)] | None = None
    """Memory of one device in 10^9 bytes, where it differs from the catalog."""


class ClusterSection(Section):
    """A described cluster, so that a plan can be made away from it."""

    nodes: Annotated[list[NodeSection], Field(min_length=1)]
    links: LinksSection = LinksSection()
