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
from rayplane.plan.serving.serve_rules import fewest
from rayplane.plan.serving.serve_search import entry_of
from rayplane.plan.serving.served import Cut
from rayplane.plan.serving.serving import asked_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import ServeJob
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement


@dataclass(frozen=True, slots=True)
class Measured:
    """What is asked of a service: requests a second, and of one the tokens in, out, and those that the prefix cache has."""

    requests_s: float
    prompt: float
    output: float
    cached: float = 0.0
    """Share of the prompt."""

    def demand(self, asked: Demand) -> Demand:
        """The job's demand, of such requests."""
        prompt, output = max(1, round(self.prompt)), max(1, round(self.output))
        return replace(asked, prompt=prompt, output=output, rate=self.requests_s, cached=min(1.0, self.cached))


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

    def holds(self, replicas: int, measured: Measured) -> bool:
        """Whether so many replicas hold the limits."""
        demand = measured.demand(self.demand)
        return not measured.requests_s or not priced(self.entry, demand, replicas, measured.requests_s).misses

    def fewest(self, measured: Measured) -> Option | None:
        """As many replicas as hold the limits; None where all that there may be do not."""
        demand, least = measured.demand(self.demand), min(self.demand.least, self.most)
        return fewest(self.entry, demand, measured.requests_s, least, self.most)


def capacity_of(job: ServeJob, model: ModelSpec, cluster: ClusterSpec, chosen: Option) -> Capacity:
    """Of a plan's option on the cluster that it is for."""
    return capacity_for(job, model, cluster, chosen.layout, chosen.cores)


def capacity_for(job: ServeJob, model: ModelSpec, cluster: ClusterSpec, layout: Layout, cores: int) -> Capacity:
    """Of replicas cut so, whatever a plan would choose; PlacementError where the cluster has no such ranks."""
    asked = asked_of(job, model, cluster)
    on = next((m for m in machines(cluster, asked.served.formats.tables) if m.cores == cores), None)
    if on is None:
        raise PlacementError(f"no rank has {cores} cores here; the largest node has {max(n.devices for n in cluster.nodes)}")
    cut = Cut(tp=layout.tp, pp=layout.pp, cp=layout.cp)
    return Capacity(entry_of(asked.served, cut, on, asked.engine), asked.demand, layout.boundaries)
