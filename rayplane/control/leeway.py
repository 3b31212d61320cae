"""What a job leaves to the planner once it runs: how many devices, which degrees, boundaries and microbatches.

layout in the job     under the same degrees                    on fewer devices
auto                  boundaries, micro_batch                   any layout
given                 those of them that it leaves out          less dp: the rest stands, and so do data order and global batch
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rayplane.errors import PlacementError, RayplaneError, SpecError
from rayplane.plan.choice.candidates import micro_batches, unequal
from rayplane.plan.choice.lacking import lacking
from rayplane.plan.choice.place import place
from rayplane.plan.choice.search import plan
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection, TrainJob
from rayplane.spec.layout import Layout, split
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Placement, Plan, Workload


@dataclass(frozen=True, slots=True)
class Leeway:
    """Of one job."""

    model: ModelSpec
    workload: Workload
    section: LayoutSection | None
    """The layout that the job gives; None where it leaves that to the planner."""
    least: int | None = None
    """Devices; None: no fewer than it has."""
    most: int | None = None
    """Devices; None: all that there are."""

    @classmethod
    def of(cls, job: TrainJob, model: ModelSpec) -> Leeway:
        """Of a job file."""
        section = None if job.layout == "auto" else job.layout
        return cls(model, Workload.of(job.train), section, job.limits.min_devices, job.limits.max_devices)

    def within(self, cluster: ClusterSpec) -> ClusterSpec:
        """The first devices of a cluster, as many as the job takes at most."""
        left, nodes = self.most or cluster.num_devices, []
        for node in cluster.nodes:
            nodes.append(replace(node, devices=min(node.devices, left)))
            left -= nodes[-1].devices
        return replace(cluster, nodes=tuple(node for node in nodes if node.devices))

    def allows(self, layout: Layout, now: Layout) -> bool:
        """Whether so many devices are neither too few nor too many for who has those of `now`."""
        return (self.least or now.size) <= layout.size <= (self.most or layout.size)

    def plan(self, cluster: ClusterSpec) -> Plan:
        """The best that the job leaves open on a cluster. Raises SpecError or PlacementError where nothing is."""
        return plan(self.model, self.workload, self.within(cluster), self.section)

    def alike(self, now: Layout) -> Iterator[Layout]:
        """Layouts of the same degrees: every micro_batch that is open, not cut unless the job says how."""
        section, batch = self.section, self.workload.global_batch
        given = section and section.micro_batch
        sizes = [now.micro_batch] if given else micro_batches(split(batch, now.dp, 0)[1])
        cut = now.boundaries if (section and section.boundaries) or now.pp == 1 else ()
        layouts = (now.but(micro_batch=size, boundaries=cut) for size in sizes)
        return (layout for layout in layouts if not unequal(layout, batch))

    def best(self, cluster: ClusterSpec) -> Plan:
        """With less dp than a given layout has, where the job goes on with fewer devices. Raises SpecError, PlacementError."""
        if self.section is None or self.least is None:
            return self.plan(cluster)
        section, first = self.section, None
        for dp in range(section.dp, 0, -1):
            fewer = replace(self, section=section.model_copy(update={"dp": dp}))
            try:
                return fewer.plan(cluster)
            except (SpecError, PlacementError) as error:
                first = first or error
        raise first or PlacementError("the cluster has no devices")

    def rearranged(self, now: Layout, placement: Placement, cluster: ClusterSpec) -> tuple[Layout, Placement, float]:
        """For the devices that are there: the same layout where it has room, else the best smaller one; and what a step takes.

        Raises PlacementError with what is missing.
        """
        if not (missing := _missing(now, placement, cluster)):
            pricer = Pricer(self.model, self.workload, cluster)
            outline = pricer.counted(pricer.outline(now))
            if outline.memory_bytes <= pricer.device_bytes:
                return now, place(now, cluster), pricer.draft(outline).step_s(pricer.orders)
        elif self.least is None:
            raise PlacementError(f"{missing}. limits.min_devices lets the job go on with fewer")
        try:
            found = self.best(cluster)
        except RayplaneError as error:
            raise PlacementError("; ".join(filter(None, (missing, str(error))))) from None
        if not self.allows(found.layout, now):
            few = f"the best layout for what is there, {found.layout}, takes {found.layout.size} devices"
            raise PlacementError(f"{few}, fewer than limits.min_devices ({self.least or now.size})")
        return found.layout, found.placement, found.estimate.step_s


def _missing(layout: Layout, placement: Placement, cluster: ClusterSpec) -> str:
    """What a cluster lacks for a layout; groups that spanned nodes may do so again."""
    if not cluster.nodes:
        return f"{layout} needs {layout.size} devices, and none is left"
    spans = any(slot.part for slot in placement.slots)
    return lacking(layout, cluster) if layout.size > cluster.num_devices or not spans else ""
