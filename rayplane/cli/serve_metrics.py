"""Metrics of a service, seen from its driver: its state and restarts, and where everything is scraped.

metrics-targets.json      the exporters, which know where ranks' time goes, and the ingresses, which know what requests meet
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from rayplane.cli.metrics import TARGETS_FILE, JobExporter
from rayplane.cli.screen import say
from rayplane.control.service_state import IngressFailed, ReplicaFailed, ReplicaServing, Service, ServiceEvent
from rayplane.control.service_status import ServiceStatus
from rayplane.telemetry.export import write_targets


class ServeMetrics:
    """An observer that tells an exporter; the ranks' owners tell it where their time goes."""

    def __init__(self, exporter: JobExporter):
        self._exporter = exporter
        self._state = ""

    def on_event(self, service: Service, event: ServiceEvent) -> None:
        """Count restarts."""
        if isinstance(event, ReplicaFailed | IngressFailed) and not service.stopping and service.ended is None:
            self._exporter.restarted()

    def on_status(self, status: ServiceStatus) -> None:
        """The state."""
        if status.state != self._state:
            self._state = status.state
            self._exporter.set_state(status.state)


class ServeTargets:
    """An observer that says where to scrape, each time that has changed."""

    def __init__(self, directory: Path, exporters: Callable[[], list[str]], console: Console):
        self._path, self._exporters, self._console = directory / TARGETS_FILE, exporters, console
        self._known: list[str] = []
        self._urls: tuple[str, ...] = ()
        self._told: list[str] = []

    def on_event(self, service: Service, event: ServiceEvent) -> None:
        """A replica may have come to another node."""
        if isinstance(event, ReplicaServing):
            self._known = self._exporters()
            self._tell()

    def on_status(self, status: ServiceStatus) -> None:
        """An ingress may listen elsewhere."""
        if status.urls != self._urls:
            self._urls = status.urls
            self._tell()

    def _tell(self) -> None:
        targets = [*self._known, *(url.removeprefix("http://") for url in self._urls)]
        if not self._known or targets == self._told:
            return
        self._told = targets
        with contextlib.suppress(OSError):  # a full disk costs the list, never the service; the next line says it anyway
            write_targets(self._path, targets)
        say(self._console, f"metrics on {', '.join(targets)}")
