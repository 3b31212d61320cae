"""A cluster's figures and where each comes from: measured by calibration, before the catalog's table, before what that assumes.

 figure                 value            source
 products fp32          172 GFLOP/s      measured
 link across            1.25 GB/s        assumed
 compute correction     1.07 times       observed

`with_profile` gives a cluster what was measured of it; `device_of` is then the device that the planner prices with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rayplane.errors import Problem, SpecError
from rayplane.plan.machine.catalog import DeviceKind, slowest
from rayplane.plan.machine.kernels import MEMORY_EFFICIENCY
from rayplane.plan.machine.measured_links import links
from rayplane.plan.step.fit import fitted
from rayplane.plan.step.terms import launching, terms_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.profile import Profile

MEASURED, TABLE, ASSUMED, OBSERVED = "measured", "table", "assumed", "observed"


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that predictions rest on. `name` is what the catalog's `assumed` calls it."""

    name: str
    value: float
    unit: str
    source: str


def with_profile(cluster: ClusterSpec, profile: Profile, file: str = "") -> ClusterSpec:
    """The cluster with its profile. Raises SpecError when that was measured on other devices."""
    kind = slowest(cluster).name
    if profile.hardware.device != kind:
        message = (
            f"measured on {profile.hardware.device}, the cluster has {kind}; run `rayplane calibrate` there, or leave the profile out"
        )
        raise SpecError(Problem(message, "hardware.device", file))
    return replace(cluster, profile=profile, links=links(profile, cluster.links))


def device_of(cluster: ClusterSpec, precision: str) -> DeviceKind:
    """The device to price with: the slowest kind, with what was measured of it."""
    kind = slowest(cluster)
    if cluster.profile is None:
        return kind
    # What is fitted is kept: for what was measured, not for every correction that a running job learns.
    plain = cluster.profile.model_copy(update={"correction": (), "observed": None})
    measured = fitted(kind.name, plain, precision, max(n.devices for n in cluster.nodes))
    return launching(measured, terms_of(cluster.profile))


def figures(cluster: ClusterSpec, precision: str) -> tuple[Figure, ...]:
    """Everything that predictions for this cluster rest on."""
    kind, measured = device_of(cluster, precision), _measured(cluster.profile, precision)

    def source(name: str) -> str:
        return MEASURED if name in measured else ASSUMED if name in kind.assumed else TABLE

    known = (Figure(name, value, unit, source(name)) for name, value, unit in _values(kind, cluster, precision))
    return (*known, *corrections(cluster.profile))


def corrections(profile: Profile | None) -> tuple[Figure, ...]:
    """How many times as long as these figures say each term was seen to take."""
    seen = [factor for factor in profile.correction if factor.seen] if profile else []
    return tuple(Figure(f"{f.term} correction", f.value, f"times, ± {f.spread:.1%}", OBSERVED) for f in seen)


def in_words(cluster: ClusterSpec, precision: str) -> str:
    """The names by source: `measured 2026-11-30 on EPYC: products, …; table: …; assumed: …; observed 2026-12-01 of run a: …`."""
    by_source: dict[str, list[str]] = {MEASURED: [], TABLE: [], ASSUMED: [], OBSERVED: []}
    for figure in figures(cluster, precision):
        by_source[figure.source].append(figure.name if figure.source != OBSERVED else f"{figure.name} {figure.value:.3g} {figure.unit}")
    when = f" {cluster.profile.date[:10]} on {cluster.profile.hardware.name}" if cluster.profile else ""
    of = cluster.profile.observed if cluster.profile else None
    seen = f" {of.date[:10]} of run {of.run} ({of.model}) under {of.layout}" if of else ""
    titles = {MEASURED: f"{MEASURED}{when}", TABLE: TABLE, ASSUMED: ASSUMED, OBSERVED: f"{OBSERVED}{seen}"}
    return "; ".join(f"{titles[source]}: {', '.join(names)}" for source, names in by_source.items() if names)


def _values(kind: DeviceKind, cluster: ClusterSpec, precision: str) -> Iterator[tuple[str, float, str]]:
    yield "products", kind.gemm_efficiency * kind.peak_flops[precision] / 1e12, "TFLOP/s"
    yield "attention", kind.attention["flash"][-1][1] * kind.peak_flops[precision] / 1e12, "TFLOP/s"
    yield "memory", MEMORY_EFFICIENCY * kind.hbm_gbytes_s, "GB/s"
    yield "launch", kind.launch_us, "µs a layer"
    yield "head", kind.ratios.head, "of its formula"
    yield "optimizer", MEMORY_EFFICIENCY * kind.hbm_gbytes_s / kind.ratios.optimizer, "GB/s"
    yield "rings inside", kind.ring_efficiency, "of the link"
    yield "rings across", kind.fabric_efficiency, "of the link"
    yield "jitter", kind.jitter, "of compute"
    yield "overlap", kind.overlap, "of a collective"
    yield "memory per rank", kind.fixed_bytes / 1e9, "GB"
    yield "host", kind.host_copy_gbytes_s, "GB/s"
    for where, link in (("inside", cluster.links.island), ("across", cluster.links.fabric)):
        yield f"link {where}", link.gbytes_s, "GB/s"
        yield f"latency {where}", link.latency_us, "µs"


def _measured(profile: Profile | None, precision: str) -> set[str]:
    """Names of the figures that a profile gives."""
    if profile is None:
        return set()
    layers = [row for row in profile.layers if row.precision == precision]
    inside = [row for row in profile.collectives if row.size <= row.per_island]
    found = {
        "products": any(row.precision == precision for row in profile.products),
        "attention": any(row.precision == precision for row in profile.attention),
        "memory": profile.memory or layers,
        "launch": layers,
        "head": any(row.precision == precision for row in profile.heads),
        "optimizer": profile.optimizer,
        "rings inside": inside,
        "rings across": len(profile.collectives) > len(inside),
        "jitter": any(row.tp > 1 for row in layers),
        "memory per rank": profile.fixed_bytes,
    }
    for where, within in (("inside", True), ("across", False)):
        found[f"link {where}"] = found[f"latency {where}"] = any(row.inside is within for row in profile.messages)
    return {name for name, there in found.items() if there}
