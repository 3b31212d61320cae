"""What a controller is to run, and how long it bears with it.

state       what is waited for                                         for so long
Starting    every rank ready: imports, meeting, weights                start_timeout_s
Running     the next step                                              limits.step_timeout_s
            after the last step, the end: the held-out loss            the longer of both
Draining    the save                                                   limits.step_timeout_s
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rayplane.control.state import Arrangement, Draining, Running, Start, Starting, State
from rayplane.rank.lease import Lease
from rayplane.runtime.group import Launch
from rayplane.spec.job import LimitsSection


@dataclass(frozen=True, slots=True)
class Task:
    """What to run, and how long to bear with it."""

    directory: Path
    """The job's folder: checkpoints, state.json, events.jsonl."""
    steps: int
    limits: LimitsSection
    launch: Launch
    """Its config gets `resume`, `attempt` and `layout` at every start."""
    model: dict[str, Any] = field(default_factory=dict)
    start_timeout_s: float = 900.0
    """From spawning to the last rank being ready to train: imports, rendezvous, reading weights, measuring the held-out loss.

    And from the last step to the end, where that loss is measured once more.
    """
    step_s: float = 0.0
    """What the planner expects of a step under that layout."""

    @property
    def arrangement(self) -> Arrangement:
        """With which the job begins."""
        return Arrangement(self.launch.layout, self.launch.placement, self.step_s)

    def launched(self, start: Start, lease: Lease) -> Launch:
        """What an attempt starts."""
        layout = start.arrangement.layout
        config = {**self.launch.config, "resume": start.checkpoint.path, "attempt": start.attempt, "layout": asdict(layout)}
        return replace(self.launch, layout=layout, placement=start.arrangement.placement, config=config, lease=lease)

    def bears(self, state: State) -> tuple[str, float] | None:
        """(what is waited for, as in TimedOut.kind, and how many seconds) in a state; None where nothing is."""
        match state:
            case Starting():
                return "start", self.start_timeout_s
            case Running(progress) if progress.step >= self.steps:
                return "end", max(self.start_timeout_s, self.limits.step_timeout_s)
            case Running():
                return "step", self.limits.step_timeout_s
            case Draining():
                return "drain", self.limits.step_timeout_s
            case _:
                return None
