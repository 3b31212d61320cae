"""A service that lives as long as a batch: it is started, asked by a thread of its own, and drained.

signal ──▶ asked ──▶ the thread leaves off, and ends ──▶ stop ──▶ the service drains           the service fails ──▶ asked, twice
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from rayplane.cli.load_line import Teller
from rayplane.cli.signals import stop_on_signals
from rayplane.control.service_loop import ServiceObserver
from rayplane.control.service_state import Service, ServiceEvent, StopAsked
from rayplane.control.service_status import ServiceStatus
from rayplane.control.stop import Stop

POLL_S = 0.1

Urls = tuple[str, ...]


class Watch(Teller):
    """Says what happens to the service, and once, where it is."""

    def __init__(self, console: Console, serves: Callable[[Urls], None]):
        super().__init__(console)
        self._serves, self._told = serves, False

    def on_event(self, service: Service, event: ServiceEvent) -> None:
        """That it is stopped is no news: the batch has ended, or says so itself."""
        if not isinstance(event, StopAsked):
            super().on_event(service, event)

    def on_status(self, status: ServiceStatus) -> None:
        """Tell who asks."""
        self.announce(status)
        if status.state == "serving" and status.urls and not self._told:
            self._told = True
            self._serves(status.urls)


class Company:
    """Who asks a service while it runs. `ask` returns when all is asked, or soon after it is stopped."""

    def __init__(self, ask: Callable[[Urls, Stop], None], console: Console):
        self._ask, self._console = ask, console
        self._error: BaseException | None = None

    @contextmanager
    def __call__(self, stop: Stop) -> Iterator[ServiceObserver]:
        """While inside, signals go to who asks; `stop` stops the service. What went wrong there is raised at the end."""
        asked, urls = Stop(), queue.SimpleQueue[Urls]()
        thread = threading.Thread(target=self._work, args=(urls, asked, stop), name="batch")
        with stop_on_signals(asked):
            thread.start()
            try:
                yield Watch(self._console, urls.put)
            finally:
                for _ in range(2):
                    asked.request()
                thread.join()
        if self._error:
            raise self._error

    def _work(self, urls: queue.SimpleQueue[Urls], asked: Stop, stop: Stop) -> None:
        try:
            while not asked.asked():
                try:
                    found = urls.get(timeout=POLL_S)
                except queue.Empty:
                    continue
                self._ask(found, asked)
                break
        except BaseException as error:
            self._error = error
        finally:
            stop.request()
