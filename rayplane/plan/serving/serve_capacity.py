"""What a chosen way to cut can do while it serves: where its replicas go, how many there can be, and what so many of them hold.

ServePlan ──▶ Capacity      holds(2 replicas, 3.5 requests/s of 900 + 200 tokens)?      priced as the planner does, at what is measured
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayplane.errors import PlacementError
from rayplane.plan.choice.place import place
from rayplane.plan.machine.cores import machines
from rayplane.plan.serving.serve_plan import Demand, Option
from rayplane.plan.serving.serve_price import Entry, priced
from rayplane.plan.serving.serve_search import entry_of
from rayplane.plan.serving.serving import asked_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of replicas cut in one way, on one cluster."""

    entry: Entry
    demand: Demand
    boundaries: tuple[int, ...]

    @property
    def most(self) -> int:
        """Replicas that there may be."""
        return self.entry.most(self.demand)

    @property
    def layout(self) -> Layout:
        """Of one replica."""
        cut = self.entry.replica.cut
        return Layout(pp=cut.pp, cp=cut.cp, tp=cut.tp, boundaries=self.boundaries)

    def placement(self) -> Placement:
        """Of as many replicas as there may be; fewer where no more have a place of their own."""
        for replicas in range(self.most, 1, -1):
            try:
                return place(replace(self.layout, dp=replicas), self.entry.on.cluster)
            except PlacementError:
                continue
        return place(self.layout, self.entry.on.cluster)

    def holds(self, replicas: int, requests_s: float, prompt: float, output: float) -> bool:
        """Whether so many replicas hold the limits for requests of these lengths, in tokens."""
        if not requests_s:
            return True
        demand = replace(self.demand, prompt=max(1, round(prompt)), output=max(1, round(output)), rate=requests_s)
        return not priced(self.entry, demand, replicas, requests_s).misses


def capacity_of(job: ServeJob, model: ModelSpec, cluster: ClusterSpec, chosen: Option) -> Capacity:
    """Of a plan's best option on the cluster that it is for."""
    asked = asked_of(job, model, cluster)
    on = next(m for m in machines(cluster, asked.served.formats.tables) if m.cores == chosen.cores)
    return Capacity(entry_of(asked.served, chosen.cut, on, asked.engine), asked.demand, chosen.boundaries)
