"""Why a cluster cannot hold a placement group: Ray says INFEASIBLE, a user needs the difference.

wants          2 bundles of 4 GPU
hosts          gpu-4: 8 GPU, gpu-5: 2 GPU          holds both
               gpu-5: 2 GPU                        "needs 4 GPU on one node; the largest has 2 (gpu-5: 2)"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A node that lives: Ray's id for it, its name and how much it has of one resource, used or not."""

    id: str
    name: str
    amount: float


@dataclass(frozen=True, slots=True)
class Want:
    """A bundle: an amount of one resource on one node; on a certain node when `host_id` is not empty."""

    amount: float
    host_id: str = ""
    host_name: str = ""


def shortage(wants: Sequence[Want], resource: str, hosts: Sequence[Host]) -> str:
    """What is missing even when nothing else runs; empty when the bundles fit."""
    free = {h.id: h.amount for h in hosts}
    if gone := sorted({w.host_name or w.host_id for w in wants if w.host_id and w.host_id not in free}):
        return f"needs node {', '.join(gone)}, which is not in the cluster any more; it has {_listing(hosts)}"
    for want in sorted(wants, key=lambda w: (not w.host_id, -w.amount)):
        host = want.host_id or max(free, key=lambda h: (free[h] >= want.amount, -free[h]), default="")
        if not host or free[host] < want.amount:
            return _difference(want, wants, resource, hosts)
        free[host] -= want.amount
    return ""


def _difference(want: Want, wants: Sequence[Want], resource: str, hosts: Sequence[Host]) -> str:
    possible = [h for h in hosts if want.host_id in ("", h.id)]
    largest = max((h.amount for h in possible), default=0)
    if largest < want.amount:
        return f"needs {want.amount:g} {resource} on one node; the largest has {largest:g} ({_listing(possible)})"
    total = sum(w.amount for w in wants if w.host_id in ("", want.host_id))
    count = sum(w.host_id in ("", want.host_id) for w in wants)
    return f"needs {total:g} {resource} in {count} parts, each on one node; there are {_listing(possible)}"


def _listing(hosts: Sequence[Host]) -> str:
    return ", ".join(f"{h.name}: {h.amount:g}" for h in hosts) or "no nodes"
