"""What a running job was seen to do, as means over a window of its steps: the same from StepReports as from Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankMeans:
    """The mean step of one rank."""

    replica: int
    stage: int
    rank: int
    phases: Mapping[str, float]
    """Seconds by phase; they sum to the step."""
    comm_bytes: Mapping[str, float]
    """Bytes sent, by mesh axis."""

    @property
    def step_s(self) -> float:
        """The whole step."""
        return sum(self.phases.values())


@dataclass(frozen=True, slots=True)
class Observation:
    """A window of a job's steps."""

    steps: float
    ranks: tuple[RankMeans, ...]
    ignored: tuple[str, ...] = ()
    """What was missing, or no number, in words."""

    @property
    def step_s(self) -> float:
        """A step lasts as long as its slowest rank."""
        return max((rank.step_s for rank in self.ranks), default=0.0)

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len({rank.replica for rank in self.ranks})

    @property
    def stages(self) -> int:
        """How many a replica has."""
        return len({rank.stage for rank in self.ranks})
