"""What a job is, and what to do: two closed unions of values. What comes is the third (event.py).

Pending ─Submitted▶ Placing ─Placed▶ Starting ─Started▶ Running ─stop, pause, a better plan▶ Draining
                       ▲                │                  │  │                                │
                       │                └────── failure ───┴──┼──────────── failure ───────────┤
                       │                           ▼          │                                │
                       ├────── KillDone ─────── Killing       └─────────GangDone▶ Finished ◀───┤
                       │                           │ └─KillDone▶ Failed, Finished              │
                       ├── Planned ── Replanning ◀─┘ devices were lost, or memory was short    │
                       ├── ResumeRequested ── Paused ◀───────────────GangDone──────────────────┤
                       └────────────────────────────────────────────GangDone, a move───────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rayplane.control.budget import NOTHING_SPENT, Kind, Spent
from rayplane.control.checkpoints import NO_CHECKPOINT, Checkpoint
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a job lies on its devices."""

    layout: Layout
    placement: Placement
    step_s: float = 0.0
    """What the planner expects of a step."""


NOWHERE = Arrangement(Layout(), Placement(()))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come."""

    attempt: int = 0
    """Starts of its gang, moves included; counts from 1."""
    step: int = 0
    """Steps that the whole gang has done."""
    checkpoint: Checkpoint = NO_CHECKPOINT
    """The newest complete one."""
    arrangement: Arrangement = NOWHERE
    spent: Spent = NOTHING_SPENT
    """Restarts after failures."""


NO_PROGRESS = Progress()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a gang cannot go on."""

    ranks: tuple[int, ...]
    """Empty where no rank in particular is to blame."""
    message: str
    kind: Kind = "rank"
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
    """The ranks were asked to save after the current step and end; then the job stops, is paused, or moves."""

    progress: Progress
    then: Literal["stop", "pause"] | Arrangement = "stop"


@dataclass(frozen=True, slots=True)
class Killing:
    """The gang is being killed; `then` says what follows."""

    progress: Progress
    failures: tuple[Failure, ...]
    then: Literal["retry", "stop", "pause", "interrupt"]
    """retry: restart while the budget lasts. stop, pause: the user wants it. interrupt: the user will not wait for a save."""


@dataclass(frozen=True, slots=True)
class Replanning:
    """No rank lives; the planner looks for a layout for what is there."""

    progress: Progress
    why: str
    """What happened, for whoever asks."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The job is saved, has no ranks and no places, and waits to be resumed."""

    progress: Progress


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


State = Pending | Placing | Starting | Running | Draining | Killing | Replanning | Paused | Finished | Failed
Live = Placing | Starting | Running | Draining


# Effects


@dataclass(frozen=True, slots=True)
class Start:
    """Place and spawn the ranks; comes back as Placed or PlaceFailed."""

    attempt: int
    checkpoint: Checkpoint
    arrangement: Arrangement


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill every rank; comes back as KillDone."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Kill the ranks that are to blame and call the others back, who keep their processes; comes back as KillDone."""

    gather_s: float = 0.0
    """Listen so long for the failure that caused the one at hand."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask every rank to save and end; comes back as Saved and GangDone."""


@dataclass(frozen=True, slots=True)
class Replan:
    """Find an arrangement for the devices that are there; comes back as Planned or NothingFits. No rank lives meanwhile."""

    kind: Kind
    """Of the failure that made it necessary."""
    ranks: tuple[int, ...]
    """Whom it struck."""


@dataclass(frozen=True, slots=True)
class Vacate:
    """Give the places back; the job may ask for some again."""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the places back. Always the last effect of a job."""


Effect = Start | Kill | Recall | Drain | Replan | Vacate | Release
