"""Metrics of a run, seen from its driver.

local    every report goes to an exporter in this process
ray      each node has its own exporter; here they are only told of, on screen and to Prometheus (file_sd)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from rayplane.cli.screen import say
from rayplane.control.state import Event, Placed, Placing, State
from rayplane.control.status import state_name
from rayplane.spec.report import StepReport
from rayplane.telemetry.export import Exporter, write_targets

TARGETS_FILE = "metrics-targets.json"


class Metrics:
    """An observer that feeds an exporter of this process."""

    def __init__(self, exporter: Exporter):
        self._exporter = exporter

    def on_event(self, state: State, event: Event) -> None:
        """The job's state, and restarts."""
        self._exporter.set_state(state_name(state))
        if isinstance(state, Placing) and state.progress.attempt > 1:
            self._exporter.restarted()

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Every rank's step."""
        for report in reports:
            self._exporter.observe(report)


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
            write_targets(self._path, targets)
            say(self._console, f"metrics on {', '.join(targets)}")

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Nothing moves within an attempt."""
