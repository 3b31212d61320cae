"""What measured collectives and messages say: a curve for each shape of group, and links and rings for shapes that were not measured.

a link      latency: what the smallest message takes           bandwidth: bytes over seconds between smallest and largest
a ring      step_us and share of the link, by the largest group of its kind, as `network` has them
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rayplane.plan.machine.catalog import DeviceKind
from rayplane.plan.machine.ratios import Curves, Points, points
from rayplane.spec.cluster import Link, Links
from rayplane.spec.profile import CollectiveTimes, Profile

Shape = tuple[str, int, int]


def curves(profile: Profile) -> Curves:
    """By shape of group. All-gather and reduce-scatter are priced alike: they are averaged."""
    seconds: dict[Shape, dict[int, list[float]]] = {}
    for row in profile.collectives:
        of = seconds.setdefault(_shape(row), {})
        of.setdefault(row.bytes, []).append(row.seconds)
    collectives = {
        shape: points((num_bytes, sum(times) / len(times)) for num_bytes, times in by_size.items())
        for shape, by_size in seconds.items()
    }
    messages = {
        inside: points((row.bytes, row.seconds) for row in profile.messages if row.inside is inside)
        for inside in {row.inside for row in profile.messages}
    }
    return Curves(collectives, messages)


def links(profile: Profile, known: Links) -> Links:
    """The cluster's links, with what messages say of them."""
    found = curves(profile).messages
    island = _link(found[True]) if True in found else known.island
    return replace(known, island=island, fabric=_link(found[False]) if False in found else known.fabric)


def rings(kind: DeviceKind, profile: Profile) -> DeviceKind:
    """The device with its links, and with what collectives reach of them."""
    kind, found = replace(kind, links=links(profile, kind.links)), curves(profile).collectives
    inside = max((shape for shape in found if shape[0] == "all_gather" and shape[1] <= shape[2]), default=None)
    if inside:
        size, gathered, reduced = inside[1], found[inside], found.get(("all_reduce", *inside[1:]))
        latency_us, link = 1e6 * gathered[0][1] / (size - 1), kind.links.island
        efficiency = (size - 1) / size / _slope(gathered) / (link.gbytes_s * 1e9)
        kind = replace(kind, ring_step_us=max(0.0, latency_us - link.latency_us), ring_efficiency=efficiency)
        if reduced:
            kind = replace(kind, all_reduce_gain=2 * _slope(gathered) / _slope(reduced))
    across = max((shape for shape in found if shape[0] == "all_gather" and shape[1] > shape[2]), default=None)
    if across:
        size, per_island = across[1:]
        share = (size - 1) / size / _slope(found[across]) / (kind.links.fabric.gbytes_s * 1e9 * per_island)
        kind = replace(kind, fabric_efficiency=share)
    return kind


def _shape(row: CollectiveTimes) -> Shape:
    return "all_reduce" if row.op == "all_reduce" else "all_gather", row.size, min(row.size, row.per_island)


def _link(curve: Points) -> Link:
    return Link(1.0 / _slope(curve) / 1e9, 1e6 * curve[0][1])


def _slope(curve: Iterable[tuple[float, float]]) -> float:
    """Seconds a byte, from the smallest to the largest."""
    (low, at_low), *_, (high, at_high) = tuple(curve)
    return max((at_high - at_low) / (high - low), 1e-15)
