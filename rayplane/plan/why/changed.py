"""A cluster and a workload after a change: links, memory, devices, islands, device kind; samples and tokens of a step.

devices=+8     nodes like those that are there, in their order, each island's copies an island of their own
devices=-8     the last ones go
island=16      nodes joined to islands of so many devices
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

from rayplane.errors import SpecError
from rayplane.plan.machine.catalog import device
from rayplane.plan.why.change import MOST, Change, How
from rayplane.spec.cluster import ClusterSpec, Link, Node
from rayplane.spec.plan import Workload

MAX_DEVICES = 1_000_000
LEAST = 1e-6
"""Of GB/s, µs or GB; nothing is slower or smaller, and rates near nothing make times without bounds."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a plan is made for, and in words what was changed of it."""

    cluster: ClusterSpec
    workload: Workload
    meaning: str = ""


def changed(setting: Setting, change: Change) -> Setting:
    """One change applied. Raises SpecError where nothing sensible is left."""
    new = CHANGES[change.name](setting, change)
    return replace(new, meaning=f"{setting.meaning}; {new.meaning}" if setting.meaning else new.meaning)


def _fabric(setting: Setting, change: Change) -> Setting:
    return _bandwidth(setting, change, "fabric", "network card")


def _island_link(setting: Setting, change: Change) -> Setting:
    return _bandwidth(setting, change, "island", "link within an island")


def _bandwidth(setting: Setting, change: Change, where: str, name: str) -> Setting:
    links = setting.cluster.links
    link: Link = getattr(links, where)
    now, new = link.gbytes_s, _positive(change, change.of(link.gbytes_s), "GB/s")
    cluster = _unmeasured(replace(setting.cluster, links=replace(links, **{where: replace(link, gbytes_s=new)})), where)
    return Setting(cluster, setting.workload, f"{name} {now:g} → {new:g} GB/s per device")


def _latency(setting: Setting, change: Change) -> Setting:
    """A factor is for all links, an amount for the fabric."""
    links, words = setting.cluster.links, []
    for where in ("island", "node", "fabric") if change.how is How.TIMES else ("fabric",):
        link = getattr(links, where)
        new = _positive(change, change.of(link.latency_us), "µs")
        links = replace(links, **{where: replace(link, latency_us=new)})
        words.append(f"{where} {link.latency_us:g} → {new:g}")
    cluster = replace(setting.cluster, links=links)
    for where in ("island", "fabric") if change.how is How.TIMES else ("fabric",):
        cluster = _unmeasured(cluster, where)
    return Setting(cluster, setting.workload, f"latency in µs: {', '.join(words)}")


def _memory(setting: Setting, change: Change) -> Setting:
    nodes = tuple(
        replace(n, memory_bytes=round(1e9 * _positive(change, change.of(n.memory_bytes / 1e9), "GB"))) for n in setting.cluster.nodes
    )
    now, new = setting.cluster.memory_bytes / 1e9, min(n.memory_bytes for n in nodes) / 1e9
    return Setting(replace(setting.cluster, nodes=nodes), setting.workload, f"memory {now:g} → {new:g} GB per device")


def _devices(setting: Setting, change: Change) -> Setting:
    now = setting.cluster.num_devices
    wanted = _whole(change, change.of(now), "devices")
    return _with_nodes(setting, _sized(setting.cluster, wanted), f"devices {now} → {wanted}")


def _nodes(setting: Setting, change: Change) -> Setting:
    nodes = setting.cluster.nodes
    wanted = _whole(change, change.of(len(nodes)), "nodes")
    devices = list(accumulate(nodes[i % len(nodes)].devices for i in range(wanted)))[-1]
    _whole(change, devices, "devices")
    made = _sized(setting.cluster, devices)
    return _with_nodes(setting, made, f"nodes {len(nodes)} → {wanted}, devices {setting.cluster.num_devices} → {devices}")


def _islands(setting: Setting, change: Change) -> Setting:
    nodes, counts = setting.cluster.nodes, [sum(n.devices for n in island) for island in setting.cluster.islands.values()]
    wanted = _whole(change, change.of(max(counts)), "devices of an island")
    per_node = nodes[0].devices
    if any(n.devices != per_node for n in nodes) or wanted % per_node:
        sizes = sorted({n.devices for n in nodes})
        raise change.wrong(f"an island of {wanted} devices is not made of whole nodes of {', '.join(map(str, sizes))}; use a multiple")
    of = wanted // per_node
    made = tuple(replace(n, island=f"island-{i // of}") for i, n in enumerate(nodes))
    return _with_nodes(setting, made, f"islands of {max(counts)} → {min(wanted, setting.cluster.num_devices)} devices")


def _kind(setting: Setting, change: Change) -> Setting:
    """Other devices, with their own memory and links."""
    try:
        kind = device(change.text)
    except SpecError as error:
        raise change.wrong(error.problems[0].message) from None
    before = ", ".join(sorted({n.kind for n in setting.cluster.nodes}))
    nodes = tuple(replace(n, kind=kind.name, memory_bytes=kind.memory_bytes) for n in setting.cluster.nodes)
    cluster = replace(setting.cluster, nodes=nodes, links=kind.links, profile=None)
    return Setting(cluster, setting.workload, f"{before} → {kind.name} ({kind.memory_bytes / 1e9:g} GB), with its links")


def _batch(setting: Setting, change: Change) -> Setting:
    now = setting.workload.global_batch
    new = _whole(change, change.of(now), "samples")
    return Setting(setting.cluster, replace(setting.workload, global_batch=new), f"global_batch {now} → {new}")


def _seq_len(setting: Setting, change: Change) -> Setting:
    now = setting.workload.seq_len
    new = _whole(change, change.of(now), "tokens")
    return Setting(setting.cluster, replace(setting.workload, seq_len=new), f"seq_len {now} → {new}")


CHANGES: dict[str, Callable[[Setting, Change], Setting]] = {
    "nic": _fabric,
    "nvlink": _island_link,
    "latency": _latency,
    "hbm": _memory,
    "devices": _devices,
    "nodes": _nodes,
    "island": _islands,
    "gpu": _kind,
    "batch": _batch,
    "seq_len": _seq_len,
}


def _with_nodes(setting: Setting, nodes: tuple[Node, ...], meaning: str) -> Setting:
    return Setting(replace(setting.cluster, nodes=nodes), setting.workload, meaning)


def _sized(cluster: ClusterSpec, wanted: int) -> tuple[Node, ...]:
    """Nodes for so many devices: those there are, then copies of them, the last one cut to what is left."""
    out: list[Node] = []
    left, index, there = wanted, 0, cluster.nodes
    while left > 0:
        copy, at = divmod(index, len(there))
        node = there[at]
        if copy:
            node = replace(node, name=f"{node.name}+{copy}", island=f"{node.island}+{copy}")
        out.append(replace(node, devices=min(left, node.devices)))
        left -= node.devices
        index += 1
    return tuple(out)


def _unmeasured(cluster: ClusterSpec, where: str) -> ClusterSpec:
    """Without what was measured of collectives and messages over a link that is now another; all other rates stay."""
    if cluster.profile is None:
        return cluster
    inside = where == "island"
    kept = {
        "collectives": tuple(row for row in cluster.profile.collectives if (row.size <= row.per_island) is not inside),
        "messages": tuple(row for row in cluster.profile.messages if row.inside is not inside),
    }
    return replace(cluster, profile=cluster.profile.model_copy(update=kept))


def _positive(change: Change, value: float, unit: str) -> float:
    if not LEAST <= value <= MOST:
        raise change.wrong(f"leaves {value:g} {unit}; use a change that leaves {LEAST:g} to {MOST:,.0f}")
    return value


def _whole(change: Change, value: float, unit: str) -> int:
    if round(value) != value or not 1 <= value <= MAX_DEVICES:
        raise change.wrong(f"leaves {value:g} {unit}; use a change that leaves a whole number from 1 to {MAX_DEVICES:,}")
    return round(value)
