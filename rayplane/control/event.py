"""What comes to a controller: a closed union of values.

Submitted, StopRequested                                      the user
Placed, PlaceFailed, KillDone                                 what its own effects came to
Started, StepDone, Saved, GangDone                            the gang's way
RankFailed, RankExited, RankLost, TimedOut                    what ends an attempt
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.control.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job is to run, from this checkpoint (the empty one: from nothing)."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Placed:
    """Every rank has been spawned."""


@dataclass(frozen=True, slots=True)
class PlaceFailed:
    """The ranks could not be spawned."""

    message: str
    retry: bool = False
    """False when the cluster cannot hold them: waiting would not help."""


@dataclass(frozen=True, slots=True)
class Started:
    """Every rank is ready to train; `step` steps are already done."""

    step: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """Every rank has finished a step. The loss is for the event log: nothing is decided by it."""

    step: int
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete on disk."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class GangDone:
    """Every rank has done its work: the last step, or a drain."""

    step: int
    drained: bool


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A rank says that it cannot go on. kind: user (never retried) or rank."""

    rank: int
    kind: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's process ended before its work was done. `signal` is 0 where it ended by itself."""

    rank: int
    code: int
    signal: int
    log: str = ""


@dataclass(frozen=True, slots=True)
class RankLost:
    """A rank's stage actor or node is gone, and the rank with it."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """Some ranks were silent for longer than the limit. kind: start, step, end or drain."""

    kind: str
    ranks: tuple[int, ...]
    waited_s: float
    step: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """SIGTERM, Ctrl-C or `stop`."""


@dataclass(frozen=True, slots=True)
class KillDone:
    """No rank is left; `checkpoint` is the newest complete one on disk."""

    checkpoint: Checkpoint


RankEvent = Started | StepDone | Saved | GangDone | RankFailed | RankExited | RankLost
Event = Submitted | Placed | PlaceFailed | RankEvent | TimedOut | StopRequested | KillDone
