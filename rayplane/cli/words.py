"""Numbers and events in words, the same in every command.

>>> count(1_700_000), duration(3725), share(0.873)
('1.7 M', '1:02:05', '87.3%')
"""

from __future__ import annotations

import json
import math
from typing import Any

from rayplane.control.event import (
    BetterPlan,
    Event,
    GangDone,
    KillDone,
    PauseRequested,
    PlaceFailed,
    Planned,
    RankExited,
    RankFailed,
    RankLost,
    RankSlow,
    ResumeRequested,
    Saved,
    Started,
    StopRequested,
    TimedOut,
    Warned,
)
from rayplane.control.failure import explain
from rayplane.control.state import Arrangement, Draining, Killing, Paused, Placing, Replanning, State


def count(number: float) -> str:
    """A large number with its unit."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def share(value: float) -> str:
    """A share of 1 as a percentage."""
    return f"{100 * value:.1f}%"


def loss(value: float | None) -> str:
    """A loss, or a dash where none was measured."""
    return "-" if value is None else f"{value:.4f}"


def as_json(value: Any) -> str:
    """One line of JSON; what is not a finite number becomes null."""
    return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value


def tell(state: State, event: Event) -> str:
    """What a user should know of an event, or nothing."""
    match state, event:
        case Placing(progress), KillDone():
            return f"restarting from step {progress.step} (attempt {progress.attempt})"
        case Killing(failures=failures), (RankFailed() | RankExited() | RankLost() | TimedOut() | PlaceFailed() | RankSlow()):
            return explain(failures)
        case _, RankSlow(rank, factor):
            return f"rank {rank} takes {factor:.1f} times as long as its peers"
        case Draining(then=Arrangement(layout=layout)), BetterPlan(_, reason):
            return f"moving to {layout} after this step: {reason}"
        case Placing(progress), GangDone():
            return f"going on from step {progress.step} under {progress.arrangement.layout}"
        case Replanning(), (KillDone() | PlaceFailed()):
            return "looking for a layout for the devices that are left"
        case Placing(progress), Planned():
            return f"restarting from step {progress.step} (attempt {progress.attempt}) under {progress.arrangement.layout}"
        case Draining(then="pause"), PauseRequested():
            return "pausing: saving after this step"
        case Paused(progress), _:
            return f"paused after step {progress.step}; rayplane resume goes on" if not isinstance(event, BetterPlan) else ""
        case Placing(progress), ResumeRequested():
            return f"resuming from step {progress.step}"
        case _, Started(step):
            return f"training from step {step}" if step else "training"
        case _, Warned(message):
            return message
        case _, Saved(checkpoint):
            return f"saved step {checkpoint.step}"
        case Draining(), StopRequested():
            return "stopping: saving after the current step (once more to stop without saving)"
        case Killing(), StopRequested():
            return "stopping"
        case _:
            return ""
