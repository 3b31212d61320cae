"""How a service looks while it runs: a line of its load on a terminal, a line now and then elsewhere, and what happens above it.

2/2 replicas  5 running, 0 waiting  341 tokens/s  2.1 requests/s  first token 0.212 s  then 0.031 s (p99)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from rayplane.cli.screen import say
from rayplane.cli.words import count
from rayplane.control.service_loop import ServiceObserver
from rayplane.control.service_state import (
    IngressFailed,
    LayoutWanted,
    MoveEnded,
    ReplicaFailed,
    ReplicaServing,
    Service,
    ServiceEvent,
    StopAsked,
    Wanted,
)
from rayplane.control.service_status import ServiceStatus

LINE_EVERY_S = 30.0


@contextmanager
def load_line(console: Console) -> Iterator[ServiceObserver]:
    """An observer that shows how a service stands."""
    if not console.is_terminal:
        yield LoadLines(console)
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as line:
        yield LiveLoad(line)


class Teller:
    """Says what happens."""

    def __init__(self, console: Console):
        self._console = console
        self._urls: tuple[str, ...] = ()

    def on_event(self, service: Service, event: ServiceEvent) -> None:
        """Print what a user should know."""
        if text := tell_service(service, event):
            say(self._console, text)

    def announce(self, status: ServiceStatus) -> None:
        """Where requests go, as soon as they are answered."""
        if status.state == "serving" and status.urls != self._urls:
            self._urls = status.urls
            say(self._console, f"serving {status.model} on {', '.join(f'{url}/v1' for url in status.urls)}")


class LiveLoad(Teller):
    """A line that changes."""

    def __init__(self, line: Progress):
        super().__init__(line.console)
        self._line, self._task = line, line.add_task("starting", total=None)

    def on_status(self, status: ServiceStatus) -> None:
        """Change it."""
        self.announce(status)
        self._line.update(self._task, description=in_words(status))


class LoadLines(Teller):
    """A line every so often while there is something to do."""

    def __init__(self, console: Console):
        super().__init__(console)
        self._shown_s = time.monotonic()

    def on_status(self, status: ServiceStatus) -> None:
        """Print it when it is time."""
        self.announce(status)
        if status.running and time.monotonic() - self._shown_s >= LINE_EVERY_S:
            self._shown_s = time.monotonic()
            say(self._console, in_words(status))


def in_words(status: ServiceStatus) -> str:
    """The load in a line."""
    serving = sum(replica.phase == "serving" for replica in status.replicas)
    parts = [
        f"{serving}/{status.wanted} replicas{f', moves to {status.layout}' if status.moving else ''}",
        f"{status.running} running, {status.waiting} waiting",
        f"{count(status.output_tokens_s)} tokens/s",
        f"{status.requests_s:.3g} requests/s",
    ]
    if status.ttft_p99_s is not None:
        parts.append(f"first token {status.ttft_p99_s:.3f} s{_then(status.itl_p99_s)} (p99)")
    return "  ".join(parts)


def _then(itl_s: float | None) -> str:
    return "" if itl_s is None else f"  then {itl_s:.3f} s"


def _replicas(number: int) -> str:
    return f"{number} replica{'' if number == 1 else 's'}"


def tell_service(service: Service, event: ServiceEvent) -> str:
    """What a user should know of an event, or nothing."""
    going_on = service.ended is None
    match event:
        case Wanted(replicas):
            return f"{_replicas(replicas)} wanted"
        case LayoutWanted(way, replicas):
            return f"{_replicas(replicas)} of {way} wanted; those that serve go on until their successors do"
        case MoveEnded(way, reason):
            return f"did not move to {way}: {reason}; {service.way} goes on" if reason else f"moved to {way}"
        case ReplicaServing(number, address):
            return f"replica {number} serves, on {address}"
        case ReplicaFailed(number, reason) if going_on:
            return f"replica {number}: {reason}{'' if service.stopping or service.move else '; another one takes its place'}"
        case IngressFailed(reason) if going_on:
            return f"{reason}; it starts again"
        case StopAsked() if going_on:
            return "stopping: what runs is finished (once more to stop at once)"
        case _:
            return ""
