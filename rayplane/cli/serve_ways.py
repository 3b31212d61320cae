"""How a serving job's replicas may be cut on a cluster: where they go, how many there may be, what they hold, and what would be better.

Way ─▶ Capacity ─▶ place: free devices ─▶ Berth        load ─▶ Measured ─▶ ask: Offer
                └▶ ability: least and most replicas, whether so many hold a load
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from rayplane.control.autoscale import Limits
from rayplane.control.berths import Berth
from rayplane.control.load import Load
from rayplane.control.relayout import Offer
from rayplane.control.way import Ability, Way
from rayplane.errors import PlacementError, Problem, SpecError
from rayplane.plan.serving.serve_capacity import Capacity, Measured, capacity_for
from rayplane.plan.serving.serve_places import Places, places_of
from rayplane.plan.serving.serve_price import lack
from rayplane.plan.serving.serve_relayout import compared
from rayplane.plan.serving.serving import asked_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec

MARGIN = 1.25
"""A number of replicas holds where it holds so much more than is asked now, so that a little more does not undo a decision at once."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Of one job on one cluster; what has been worked out of a way is kept."""

    job: ServeJob
    model: ModelSpec
    cluster: ClusterSpec
    known: dict[Way, Places] = field(default_factory=dict)

    def place(self, way: Way, free: frozenset[int]) -> Berth | None:
        """Where one more replica can be on these devices."""
        seat = self._places(way).on(free)
        return Berth(*seat) if seat else None

    def ability(self, way: Way) -> Ability:
        """Of replicas cut so. SpecError, PlacementError where they cannot be cut so, or the job does not let them."""
        self._check(way)
        return Ability(self._limits(way), partial(_holds, self._places(way).capacity))

    def ask(self, load: Load, present: Way) -> Offer | None:
        """What the planner would choose for a measured load; None where nothing that the job allows holds it."""
        if (measured := _measured(load)) is None:
            return None
        known = self._places(present).capacity
        found = compared(asked_of(self.job, self.model, self.cluster), self.cluster, known, measured)
        best = found.best
        if best is None or (best.cut, best.cores) == (known.entry.replica.cut, present.cores):
            return None
        way = Way(Layout(pp=best.cut.pp, cp=best.cut.cp, tp=best.cut.tp, boundaries=best.boundaries), best.cores)
        return Offer(way, max(best.replicas, self._limits(way).least), found.present_devices)

    def _places(self, way: Way) -> Places:
        if way not in self.known:
            capacity = capacity_for(self.job, self.model, self.cluster, way.layout, way.cores)
            self.known[way] = places_of(capacity, self.cluster)
        return self.known[way]

    def _check(self, way: Way) -> None:
        layout, fixed = way.layout, self.job.layout
        if fixed != "auto" and (layout.pp, layout.cp, layout.tp) != (fixed.pp, fixed.cp, fixed.tp):
            raise SpecError(Problem(f"the job fixes it, and {way} is another; write `layout: auto`", "layout"))
        if len(layout.boundaries) != layout.pp or sum(layout.boundaries) != self.model.layers:
            message = f"{list(layout.boundaries)} are not the layers of {layout.pp} stages of a model with {self.model.layers}"
            raise SpecError(Problem(message, "layout.boundaries"))
        capacity = self._places(way).capacity
        if reason := lack(capacity.entry, capacity.demand):
            raise PlacementError(f"{way} does not fit: {reason}")

    def _limits(self, way: Way) -> Limits:
        serving, limits, slo = self.job.serve, self.job.limits, self.job.serve.slo
        dp = None if self.job.layout == "auto" else self.job.layout.dp
        room = len(self._places(way).planned)
        if limits.max_devices is not None and limits.max_devices < (dp or 1) * way.devices:
            few = f"{limits.max_devices} are fewer than {dp or 1} x {way} takes; allow {(dp or 1) * way.devices}"
            raise SpecError(Problem(few, "limits.max_devices"))
        allowed = (limits.max_devices or math.inf) // way.devices
        most = dp or int(min(room, serving.replicas.max or room, allowed))
        floor = max(serving.replicas.min, math.ceil((limits.min_devices or 0) / way.devices))
        ttft_s, tpot_s = (ms / 1e3 if ms else math.inf for ms in (slo.ttft_ms, slo.tpot_ms))
        return Limits(dp or min(floor, most), most, ttft_s, tpot_s)


def _measured(load: Load) -> Measured | None:
    """Requests as long as they were on average, and somewhat more of them; None where nobody knows how long they are."""
    if not load.requests_s:
        return None
    prompt, output = load.prompt_tokens_s / load.requests_s, load.output_tokens_s / load.requests_s
    cached = load.cached_tokens_s / load.prompt_tokens_s if load.prompt_tokens_s else 0.0
    return Measured(MARGIN * load.offered_s, prompt, output, cached)


def _holds(capacity: Capacity, replicas: int, load: Load) -> bool:
    """What the planner says of a load."""
    measured = _measured(load)
    return not load.offered_s if measured is None else capacity.holds(replicas, measured)
