"""The devices and links the planner knows, as data (`catalog.yaml`), and clusters made from them.

described(cluster section of a job) ─┐
                                      ├─▶ ClusterSpec(nodes, links)      what the job or the catalog says of each device
homogeneous(discovered nodes)       ─┘
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from rayplane.errors import Problem, SpecError
from rayplane.plan.machine.ratios import AS_COMPUTED, NOT_MEASURED, Curves, Ratios
from rayplane.spec.cluster import ClusterSpec, Link, Links, Node
from rayplane.spec.cluster_section import ClusterSection, LinkSection, NodeSection


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What the planner must know of a kind of device; `catalog.yaml` explains each figure."""

    name: str
    memory_bytes: int
    hbm_gbytes_s: float
    peak_flops: Mapping[str, float]
    """FLOP/s by precision."""
    gemm_efficiency: float
    """Share of peak that a large GEMM keeps in a long run."""
    gemm_t0_us: float
    cores: int
    """That share a matrix product tile by tile; 0 where one core does it all."""
    attention: Mapping[str, tuple[tuple[int, float], ...]]
    """(sequence length, share of peak), in order, by kernel."""
    launch_us: float
    ring_efficiency: float
    fabric_efficiency: float
    ring_step_us: float
    all_reduce_gain: float
    overlap: float
    jitter: float
    fixed_bytes: int
    fragmentation: float
    host_copy_gbytes_s: float
    host_gbytes_s: float
    """Of one device's part of its host's memory."""
    is_host: bool
    """Whether the device's memory is the host's."""
    links: Links
    assumed: frozenset[str] = frozenset()
    """Names of the figures that stand on no source."""
    ratios: Ratios = AS_COMPUTED
    curves: Curves = NOT_MEASURED


def device(kind: str, field: str = "device") -> DeviceKind:
    """A device kind by name; SpecError with the nearest name for an unknown one."""
    kinds = _kinds()
    if found := kinds.get(kind.lower()):
        return found
    close = [k for k in kinds if k.startswith(kind.lower())] or difflib.get_close_matches(kind.lower(), kinds, n=1, cutoff=0.4)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close and kind else ""
    raise SpecError(Problem(f"unknown device kind '{kind}', {hint}Known: {', '.join(kinds)}", field))


def kinds() -> tuple[DeviceKind, ...]:
    """Every device kind."""
    return tuple(_kinds().values())


def slowest(cluster: ClusterSpec) -> DeviceKind:
    """The kind of device that holds the others up: the one with the least bf16 throughput."""
    kinds = sorted({n.kind for n in cluster.nodes})
    return min((device(k) for k in kinds), key=lambda d: d.peak_flops["bf16"] * d.gemm_efficiency)


def at_least(memory_bytes: int, but: str) -> list[str]:
    """Kinds with so much memory, those with least of it first; not the host's."""
    kinds = [k for k in _kinds().values() if k.memory_bytes >= memory_bytes and not k.is_host and k.name != but]
    return [k.name for k in sorted(kinds, key=lambda k: (k.memory_bytes, k.name))]


def described(section: ClusterSection) -> ClusterSpec:
    """The cluster a job describes; raises SpecError naming every unknown device kind and every name used twice."""
    problems: list[Problem] = []
    for i, entry in enumerate(section.nodes):
        try:
            device(entry.device, f"cluster.nodes[{i}].device")
        except SpecError as error:
            problems += error.problems
    nodes = [] if problems else [node for entry in section.nodes for node in _expand(entry)]
    twice = [name for name, count in Counter(n.name for n in nodes).items() if count > 1]
    problems += [Problem(f"two nodes are called '{name}'; give each entry its own name", "cluster.nodes.name") for name in twice[:3]]
    if problems:
        raise SpecError(problems)
    known = common_links(nodes)
    links = Links(*(_link(getattr(section.links, distance), getattr(known, distance)) for distance in ("island", "node", "fabric")))
    return ClusterSpec(tuple(nodes), links)


def homogeneous(node_devices: Mapping[str, int], kind: str, memory_bytes: int, islands: Mapping[str, str]) -> ClusterSpec:
    """A discovered cluster of one device kind: devices by node, memory of one device, island of each node."""
    known = device(kind)
    nodes = [
        Node(name, devices, known.name, islands.get(name, name), memory_bytes) for name, devices in node_devices.items() if devices
    ]
    return ClusterSpec(tuple(nodes), known.links)


def _expand(entry: NodeSection) -> list[Node]:
    known = device(entry.device)
    memory = round(entry.memory_gb * 1e9) if entry.memory_gb else known.memory_bytes
    names = [entry.name] if entry.count == 1 else [f"{entry.name}-{i}" for i in range(entry.count)]
    return [Node(name, entry.devices, known.name, entry.island or name, memory) for name in names]


def common_links(nodes: Sequence[Node]) -> Links:
    """Catalog links of the kinds present; of several kinds, the slower link at each distance."""
    known = [device(k).links for k in sorted({n.kind for n in nodes})]
    return Links(*(min((getattr(k, distance) for k in known), key=_speed) for distance in ("island", "node", "fabric")))


def _speed(link: Link) -> float:
    return link.gbytes_s


def _link(given: LinkSection | None, known: Link) -> Link:
    return Link(given.gbytes_s, given.latency_us) if given else known


@cache
def _kinds() -> dict[str, DeviceKind]:
    text = resources.files("rayplane.plan.machine").joinpath("catalog.yaml").read_text(encoding="utf-8")
    return {name: _kind(name, entry) for name, entry in yaml.safe_load(text).items()}


def _kind(name: str, entry: Mapping[str, Any]) -> DeviceKind:
    gemm, ring = entry["gemm"], entry["ring"]
    return DeviceKind(
        name=name,
        memory_bytes=round(entry["memory_gb"] * 1e9),
        hbm_gbytes_s=float(entry["hbm_gbytes_s"]),
        peak_flops={precision: tflops * 1e12 for precision, tflops in entry["peak_tflops"].items()},
        gemm_efficiency=gemm["efficiency"] * gemm["clock"],
        gemm_t0_us=float(gemm["t0_us"]),
        cores=gemm.get("cores", 0),
        attention={kernel: _at_clock(table, gemm["clock"]) for kernel, table in entry["attention"].items()},
        launch_us=float(entry["launch_us"]),
        ring_efficiency=ring["efficiency"],
        fabric_efficiency=ring["fabric"],
        ring_step_us=float(ring["step_us"]),
        all_reduce_gain=ring["all_reduce_gain"],
        overlap=entry["overlap"],
        jitter=entry["jitter"],
        fixed_bytes=round(entry["fixed_gb"] * 1e9),
        fragmentation=entry["fragmentation"],
        host_copy_gbytes_s=float(entry["host"]["copy_gbytes_s"]),
        host_gbytes_s=float(entry["host"]["gbytes_s"]),
        is_host=entry["host"]["same"],
        links=Links(*(Link(**entry["links"][distance]) for distance in ("island", "node", "fabric"))),
        assumed=frozenset(entry.get("assumed", ())),
    )


def _at_clock(table: Mapping[int, float], clock: float) -> tuple[tuple[int, float], ...]:
    """Shares of peak by sequence length, as a long run keeps them."""
    return tuple((seq_len, clock * share) for seq_len, share in sorted(table.items()))
