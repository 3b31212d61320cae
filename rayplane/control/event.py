"""What comes to a controller: a closed union of values.

Submitted, StopRequested, PauseRequested, ResumeRequested     the user
BetterPlan                                                    the user, or who watches the measurements
Placed, PlaceFailed, KillDone, Planned, NothingFits           what its own effects came to
Started, StepDone, Saved, Warned, GangDone                    the gang's way
RankSlow                                                      noted; ends an attempt where there is another device
RankFailed, RankExited, RankLost, TimedOut                    what ends an attempt
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.control.budget import Kind
from rayplane.control.checkpoints import Checkpoint
from rayplane.control.state import Arrangement


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job is to run, from this checkpoint (the empty one: from nothing)."""

    checkpoint: Checkpoint
    arrangement: Arrangement


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
    """A rank says that it cannot go on."""

    rank: int
    kind: Kind
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
    kind: Kind = "node"


@dataclass(frozen=True, slots=True)
class RankSlow:
    """A rank takes `factor` times as long as its peers, and has for a while. `replace`: there is another device for it."""

    rank: int
    factor: float
    replace: bool


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
class PauseRequested:
    """The job is to be saved and to give its devices back until it is resumed."""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """A paused job is to go on."""


@dataclass(frozen=True, slots=True)
class BetterPlan:
    """The job is to go on under another arrangement, and why."""

    arrangement: Arrangement
    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The best arrangement for the devices that are there."""

    arrangement: Arrangement


@dataclass(frozen=True, slots=True)
class NothingFits:
    """The devices that are there hold no layout of this job, and what is missing."""

    message: str


@dataclass(frozen=True, slots=True)
class Warned:
    """The ranks have something to say that ends nothing: a damaged checkpoint was passed over, memory is too small for copies."""

    message: str


@dataclass(frozen=True, slots=True)
class KillDone:
    """No rank trains any more; `checkpoint` is the newest complete one on disk."""

    checkpoint: Checkpoint


UserEvent = Submitted | StopRequested | PauseRequested | ResumeRequested | BetterPlan
EffectEvent = Placed | PlaceFailed | KillDone | Planned | NothingFits
RankEvent = Started | StepDone | Saved | Warned | GangDone | RankFailed | RankExited | RankLost
Event = UserEvent | EffectEvent | RankEvent | RankSlow | TimedOut
