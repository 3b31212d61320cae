"""Where a job goes on after a failure that changed its devices: the same layout placed anew, the best smaller one, or nowhere yet.

kind                 first                                                     then
node, preemption     the nodes of those ranks are left out if they are silent  the same layout, where it has room; fewer devices, where
straggler            their nodes are left out as long as others have room      limits.min_devices allows it; else wait for more
memory               what failed, and all that needs as much, is too large     the best layout that needs less
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from rayplane.cli.devices import Devices, nodes_of
from rayplane.control.budget import Kind
from rayplane.control.leeway import Leeway
from rayplane.control.state import Arrangement
from rayplane.errors import PlacementError
from rayplane.plan.measured.shortfall import shortfall
from rayplane.plan.step.train import Pricer
from rayplane.runtime.patience import GaveUp, Patience
from rayplane.spec.cluster import ClusterSpec

LOOK_S = 0.3
WAIT_S = 600.0
"""For devices to come back: as long as a job waits for places that others use."""

Say = Callable[[str], None]


class ClusterReplanner:
    """A Replanner for one job. `say` tells the user what it waits for, and what memory was missing."""

    def __init__(self, leeway: Leeway, devices: Devices, say: Say, wait_s: float = WAIT_S):
        self._leeway, self._devices, self._say, self._wait_s = leeway, devices, say, wait_s

    def again(self, now: Arrangement, kind: Kind, ranks: Sequence[int], give_up: Callable[[], bool]) -> Arrangement:
        """The best arrangement for the devices that are there, once there is one. PlacementError, GaveUp."""
        struck = nodes_of(now, tuple(ranks))
        if kind in ("node", "preemption"):
            self._devices.lost(struck, gone=kind == "preemption")
        elif kind == "straggler":
            self._devices.slow(struck)
        elif kind == "memory":
            return self._leaner(now)
        return self._waited(now, Patience(self._wait_s, give_up))

    def follow(self, leeway: Leeway) -> None:
        """The user has said what the job leaves to the planner from now on."""
        self._leeway = leeway

    def _leaner(self, now: Arrangement) -> Arrangement:
        cluster = self._devices.now()
        short = shortfall(Pricer(self._leeway.model, self._leeway.workload, cluster), now.layout)
        self._devices.take(short.fixed_bytes)
        self._say(f"{short.said}, which was too much")
        return self._arranged(now, self._devices.now())

    def _waited(self, now: Arrangement, patience: Patience) -> Arrangement:
        began_s, told = time.monotonic(), ""
        while True:
            try:
                return self._found(now)
            except PlacementError as error:
                missing = str(error)
            if time.monotonic() - began_s >= patience.wait_s:
                raise PlacementError(f"{missing}; waited {patience.wait_s:g} s for devices")
            if missing != told:
                self._say(f"{missing}; waiting up to {patience.wait_s:g} s for devices")
                told = missing
            _pause(patience.give_up)

    def _found(self, now: Arrangement) -> Arrangement:
        """Without slow nodes, unless the layout has room only with them."""
        good, everything = self._devices.good(), self._devices.now()
        if good.nodes != everything.nodes:
            try:
                if (found := self._arranged(now, good)).layout == now.layout:
                    return found
            except PlacementError:
                pass
        return self._arranged(now, everything)

    def _arranged(self, now: Arrangement, cluster: ClusterSpec) -> Arrangement:
        layout, placement, step_s = self._leeway.rearranged(now.layout, now.placement, cluster)
        return replace(now, layout=layout, placement=placement, step_s=step_s)


def _pause(give_up: Callable[[], bool]) -> None:
    if give_up():
        raise GaveUp
    time.sleep(LOOK_S)
