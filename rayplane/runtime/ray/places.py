"""Places for a job on the connected cluster: one placement group with a bundle per Slot, each pinned to the node it is bound to.

ticket ──▶ no room even on an empty cluster? ──▶ PlacementError          in each turn, for nodes may go
   ▲   ──▶ first in line, and room among what is free? ──▶ placement group, all or nothing ──▶ Reserved
   └── wait, and say the place in the line and what is missing
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray._private.state import available_resources_per_node
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from rayplane.errors import PlacementError
from rayplane.plan.choice.bind import Bound, bind
from rayplane.plan.machine.names import kind_of
from rayplane.runtime.group import Launch
from rayplane.runtime.hardware.machines import ISLAND_LABEL, RACK_LABEL, topology_order
from rayplane.runtime.patience import GaveUp, Patience
from rayplane.runtime.ray.cluster import NODE_LABEL, living_nodes, node_ids, node_names
from rayplane.runtime.ray.discovery import ACCELERATOR
from rayplane.runtime.ray.queue import Ticket, line, queued, ticket_of, waiting
from rayplane.runtime.ray.shortage import Want, shortage
from rayplane.spec.cluster import Node, Reach
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement

JOB = "rayplane-"
"""Begins the name of a job's placement group."""
LOOK_S = 0.2
"""How often a wait for places looks whether it should go on."""
TELL_AFTER_S = 2.0
"""Free places take a moment too."""
CLAIM_S = 5.0
"""Until a claim counts as lost to somebody who was faster, or to a node that says it is free and is not."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """On which a job takes its places."""

    reach: Reach = "island"
    """How far apart the ranks of a tp group may be."""
    priority: int = 0
    """Before whom it stands in the line."""
    known: tuple[Node, ...] = ()
    """The nodes as they were discovered; of others their labels say where they are."""


USUAL = Terms()


@dataclass(frozen=True, slots=True)
class Ask:
    """What to reserve. `each` is what a rank gets of the resource."""

    name: str
    layout: Layout
    planned: Placement
    resource: str
    each: int
    terms: Terms

    @property
    def want(self) -> Want:
        """In numbers."""
        return Want.of(self.layout, self.resource, self.each, self.terms.reach)

    def bound(self, nodes: Sequence[Node]) -> Bound | None:
        """Where its stages go on nodes with so much room."""
        return bind(self.layout, self.planned, nodes, self.terms.reach)


OnBound = Callable[[Launch, Bound], None]
"""Is told where a launch goes, when that is not where it was planned."""


def as_planned(launch: Launch, bound: Bound) -> None:
    """For who does not care where stages go."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Places that are there."""

    group: PlacementGroup
    bound: Bound


def reserve(ask: Ask, patience: Patience) -> Reserved:
    """Places for every stage, near enough to each other, when it is the job's turn.

    Raises PlacementError at once when the cluster is too small, after a while when others use what is needed; GaveUp.
    """
    _refuse_what_cannot_fit(ask)
    mine = ticket_of(ask.name, ask.terms.priority, ask.resource, str(ask.want))
    began_s, told = time.monotonic(), ""
    with queued(mine):
        while True:
            free = rooms(ask, free=True)
            ahead, waits = line(mine, waiting())
            bound = None if ahead else ask.bound(free)
            if bound and (group := _claim(ask, bound.placement, patience)):
                return Reserved(group, bound)
            waited_s = time.monotonic() - began_s
            if waited_s >= patience.wait_s:
                why = f"{_busy(ask, free, ahead, waits)}; gave up after {patience.wait_s:g} s"
                raise PlacementError(f"{why}. Stop other jobs, or choose a smaller layout")
            if waited_s >= TELL_AFTER_S and (place := f"{len(ahead)} {waits}") != told:
                log.warning("%s; waiting up to %g s for other jobs to end", _busy(ask, free, ahead, waits), patience.wait_s)
                told = place
            if patience.give_up():
                raise GaveUp
            time.sleep(LOOK_S)
            _refuse_what_cannot_fit(ask)


def rooms(ask: Ask, free: bool) -> list[Node]:
    """The nodes in topology order, with as many devices as there is room for ranks: in all, or among what nobody uses."""
    records = living_nodes()
    names, available = node_names(records), available_resources_per_node() if free else {}
    known: dict[str, list[Node]] = {}
    for node in ask.terms.known:
        known.setdefault(node.name, []).append(node)
    out: list[Node] = []
    for record in records:
        resources = available.get(record["NodeID"], {}) if free else record["Resources"]
        name = names[record["NodeID"]]
        parts = known.get(name) or [_not_known(record, name, ask)]
        out += _with_room(parts, int(resources.get(ask.resource, 0)) // ask.each)
    return sorted(out, key=topology_order)


def _not_known(record: dict[str, Any], name: str, ask: Ask) -> Node:
    """A node that came later, or that nobody described: on the island for which it was planned, else as it is labelled."""
    known, planned = ask.terms.known, {slot.node: slot.island for slot in ask.planned.slots}
    labels, resources = record["Labels"], record["Resources"]
    kinds = [kind_of(r.removeprefix(ACCELERATOR)) for r in resources if r.startswith(ACCELERATOR)]
    kind = next(filter(None, kinds), known[0].kind if known else "")
    return Node(name, 0, kind, planned.get(name, labels.get(ISLAND_LABEL, name)), 0, labels.get(RACK_LABEL, ""))


def _with_room(parts: Sequence[Node], room: int) -> list[Node]:
    """A node's parts with so many devices altogether. Ray gives the first GPUs of a node first, so the last parts are free."""
    out = []
    for part in reversed(parts):
        devices = room if len(parts) == 1 else min(part.devices, room)
        out.append(replace(part, devices=devices))
        room -= devices
    return out


def _refuse_what_cannot_fit(ask: Ask) -> None:
    """Raise PlacementError when the cluster cannot hold the job even if nothing else ran on it."""
    nodes = rooms(ask, free=False)
    if ask.bound(nodes) is None:
        looser = "" if ask.terms.reach == "anywhere" or ask.want.size == 1 else ", or let it spread with limits.fallback"
        raise PlacementError(f"the job needs {ask.want}; {shortage(ask.want, nodes)}. Add nodes, choose a smaller layout{looser}")


def _claim(ask: Ask, placement: Placement, patience: Patience) -> PlacementGroup | None:
    """The placement group, or nothing when what was free is not."""
    ids = node_ids()
    if any(slot.node not in ids for slot in placement.slots):
        return None
    bundles = [{ask.resource: ask.each * len(slot.ranks)} for slot in placement.slots]
    pinned = [{NODE_LABEL: ids[slot.node]} for slot in placement.slots]
    group = placement_group(bundles, strategy="PACK", name=JOB + ask.name, bundle_label_selector=pinned)
    end_s = time.monotonic() + CLAIM_S
    try:
        while not group.wait(LOOK_S):
            if patience.give_up():
                raise GaveUp
            if time.monotonic() >= end_s:
                remove_placement_group(group)
                return None
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def _busy(ask: Ask, free: Sequence[Node], ahead: Sequence[Ticket], waits: int) -> str:
    """The place in the line, what is needed, what is free, and which jobs hold the rest."""
    first = f"waits in place {len(ahead) + 1} of {waits}"
    behind = f" (behind {', '.join(f'{t.job}, priority {t.priority}' for t in ahead[:3])})" if ahead else ""
    held = Counter[str]()
    for group in placement_group_table().values():
        if group["state"] == "CREATED":
            name = group["name"].removeprefix(JOB) or group["placement_group_id"][:8]
            held[name] += sum(bundle.get(ask.resource, 0) for bundle in group["bundles"].values())
    holders = ", ".join(f"{name}: {amount:g}" for name, amount in held.most_common() if amount)
    lacks = "what is free would do" if ask.bound(free) else shortage(ask.want, free, "free ")
    return f"the job {first}{behind}: it needs {ask.want}; {lacks}{f' (held by {holders})' if holders else ''}"
