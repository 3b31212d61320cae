"""What the planner makes of an order that moves a job.

scale --devices 6      layout: auto      the best layout on so many devices, or fewer where that is faster
                       layout given      its dp as large as these devices allow; the rest stands
layout set tp=2        the degrees stand; micro_batch and boundaries are filled in where they are left out

Whoever looks for better plans keeps to the order from then on, until the run ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rayplane.control.leeway import Leeway
from rayplane.control.order import Order
from rayplane.control.state import Arrangement
from rayplane.errors import PlacementError, RayplaneError
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.plan import Plan

Follow = Callable[[Leeway], None]
"""Is told what the job leaves to the planner from now on."""


class JobPlanner:
    """An OrderPlanner for one job; its planning may go on in any thread. `devices`: the cluster as it is now."""

    def __init__(self, job: Leeway, devices: Callable[[], ClusterSpec], followers: Sequence[Follow] = ()):
        self._job = self._leeway = job
        self._devices, self._followers = devices, followers

    def arrangement(self, order: Order, now: Arrangement) -> Arrangement:
        """Where an order wants the job to be. RayplaneError with the planner's reason where it cannot be."""
        if order.verb == "scale":
            self._check(order.number, "--devices")
            found = _widest(self._under(order), order.number, self._devices())
        else:
            found = replace(self._under(order), most=None).plan(self._devices())
        self._check(found.layout.size, f"{found.layout} on")
        return Arrangement(found.layout, found.placement, found.estimate.step_s)

    def accepted(self, order: Order) -> None:
        """What others may find from now on is within the order."""
        self._leeway = self._under(order)
        for follow in self._followers:
            follow(self._leeway)

    def _under(self, order: Order) -> Leeway:
        """What an order leaves to the planner."""
        return replace(self._leeway, most=order.number) if order.verb == "scale" else replace(self._job, section=order.layout)

    def _check(self, number: int, what: str) -> None:
        least, most = self._job.least, self._job.most
        if least and number < least:
            raise PlacementError(f"{what} {number}: fewer devices than limits.min_devices ({least})")
        if most and number > most:
            raise PlacementError(f"{what} {number}: more devices than limits.max_devices ({most})")


def _widest(leeway: Leeway, number: int, cluster: ClusterSpec) -> Plan:
    if number > cluster.num_devices:
        raise PlacementError(f"--devices {number}: the cluster has {cluster.num_devices}")
    if leeway.section is None:
        return leeway.plan(cluster)
    section, first = leeway.section, None
    group = section.pp * section.cp * section.tp
    for dp in range(number // group, 0, -1):
        try:
            return replace(leeway, section=section.model_copy(update={"dp": dp})).plan(cluster)
        except RayplaneError as error:
            first = first or error
    few = f"a replica of the job's layout takes {group}; choose another with rayplane layout set"
    raise first or PlacementError(f"--devices {number}: {few}")
