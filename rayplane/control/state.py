"""What a job is, and what to do: two closed unions of values. What comes is the third (event.py).

Pending ─Submitted▶ Placing ─Placed▶ Starting ─Started▶ Running ─StopRequested▶ Draining
                       ▲                │                  │  │                     │
                       │                └────── failure ───┴──┼──── failure ────────┤
                       │                           ▼          │                     │
                       └────── KillDone ─────── Killing       └─GangDone▶ Finished ◀┘
                                                   └─KillDone▶ Failed, Finished
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayplane.control.checkpoints import NO_CHECKPOINT, Checkpoint


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come. `attempt` counts from 1, so a job has been restarted `attempt - 1` times."""

    attempt: int = 0
    step: int = 0
    """Steps that the whole gang has done."""
    checkpoint: Checkpoint = NO_CHECKPOINT
    """The newest complete one."""


NO_PROGRESS = Progress()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a gang cannot go on."""

    ranks: tuple[int, ...]
    """Empty where no rank in particular is to blame."""
    message: str
    user: bool = False
    """The user's mistake: trying again would fail again."""
    consequence: bool = False
    """A lost connection: some other rank failed first."""


# States


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing has been started."""

    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class Placing:
    """The ranks are being given their places and spawned."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Starting:
    """The ranks live; they meet, build their stages and load."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Running:
    """Every rank trains."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Draining:
    """The ranks were asked to save after the current step and end."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Killing:
    """The gang is being killed; `then` says what follows."""

    progress: Progress
    failures: tuple[Failure, ...]
    then: Literal["retry", "stop", "interrupt"]
    """retry: restart while the budget lasts. stop: the user wants it to end. interrupt: the user will not wait for a save."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All steps are done, or the job was drained and can be resumed."""

    progress: Progress
    drained: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended without its last step, and why."""

    progress: Progress
    message: str
    exit_code: int


State = Pending | Placing | Starting | Running | Draining | Killing | Finished | Failed
Live = Placing | Starting | Running | Draining


# Effects


@dataclass(frozen=True, slots=True)
class Start:
    """Place and spawn the ranks; comes back as Placed or PlaceFailed."""

    attempt: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill every rank; comes back as KillDone."""

    gather_s: float = 0.0
    """Listen so long for the failure that caused the one at hand."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask every rank to save and end; comes back as Saved and GangDone."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the places back. Always the last effect of a job."""


Effect = Start | Kill | Drain | Release
