"""Metrics of a run, seen from its driver: what the job as a whole does, and where the exporters are.

local    one exporter, in this process
ray      one per node; that of the driver's node is told of the job as a whole
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from rayplane.cli.screen import say
from rayplane.control.event import Event, KillDone, Placed, Planned, Saved
from rayplane.control.state import Placing, State
from rayplane.control.status import state_name
from rayplane.spec.report import StepReport
from rayplane.telemetry.export import write_targets

TARGETS_FILE = "metrics-targets.json"


class JobExporter(Protocol):
    """What is told of a job as a whole."""

    def set_state(self, name: str) -> None:
        """The job is in this state now."""

    def set_predicted(self, step_s: float) -> None:
        """What the planner expects of a step."""

    def saved(self) -> None:
        """A checkpoint is complete."""

    def restarted(self) -> None:
        """All ranks are started anew."""


class Metrics:
    """An observer that tells an exporter; the ranks' owners tell it of every step."""

    def __init__(self, exporter: JobExporter, predicted_step_s: float):
        self._exporter = exporter
        self._state, self._predicted_s = "", predicted_step_s
        exporter.set_predicted(predicted_step_s)

    def on_event(self, state: State, event: Event) -> None:
        """The job's state, checkpoints and restarts, and what is expected of a step where the job has moved."""
        if (name := state_name(state)) != self._state:
            self._exporter.set_state(name)
            self._state = name
        expected_s = state.progress.arrangement.step_s
        if isinstance(state, Placing) and expected_s not in (0.0, self._predicted_s):
            self._exporter.set_predicted(expected_s)
            self._predicted_s = expected_s
        match state, event:
            case _, Saved():
                self._exporter.saved()
            case Placing(), (KillDone() | Planned()):
                self._exporter.restarted()

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """The exporter knows it from the ranks' owner."""


class Targets:
    """An observer that says where the exporters are, each time the ranks have been placed elsewhere."""

    def __init__(self, directory: Path, where: Callable[[], list[str]], console: Console):
        self._path, self._where, self._console = directory / TARGETS_FILE, where, console
        self._told: list[str] = []

    def on_event(self, state: State, event: Event) -> None:
        """Tell of new exporters."""
        targets = self._where() if isinstance(event, Placed) else self._told
        if targets != self._told:
            self._told = targets
            with contextlib.suppress(OSError):  # a full disk costs the list, never the job; the next line says it anyway
                write_targets(self._path, targets)
            say(self._console, f"metrics on {', '.join(targets)}")

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Nothing moves within an attempt."""
