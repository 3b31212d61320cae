"""How a replica of a service is cut, and what that can do.

Way(Layout(tp=2))              2 devices           tp2
Way(Layout(pp=2), cores=4)     8 cores of a host   pp2 1+2 of 4 cores
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rayplane.control.autoscale import Holds, Limits
from rayplane.spec.layout import AXES, Layout


@dataclass(frozen=True, slots=True)
class Way:
    """A replica's layout, and how many cores each of its ranks has where devices are cores."""

    layout: Layout = field(default_factory=Layout)
    cores: int = 1

    @property
    def devices(self) -> int:
        """What a replica takes."""
        return self.layout.size * self.cores

    def __str__(self) -> str:
        layout = self.layout
        degrees = [f"{axis}{getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1]
        if not degrees:
            return "1 device" if self.cores == 1 else f"{self.cores} cores"
        stages = ["+".join(map(str, layout.boundaries))] if layout.pp > 1 and layout.boundaries else []
        cores = [f"of {self.cores} cores"] if self.cores > 1 else []
        return " ".join([*degrees, *stages, *cores])


@dataclass(frozen=True, slots=True)
class Ability:
    """Of replicas cut in one way, on the cluster that there is."""

    limits: Limits
    holds: Holds
