"""The user's orders to a running service, which takes one: to stop.

orders/*.order ─Mailbox─▶ on_status, once a second ─▶ Stop: once to finish what runs, twice to not     at the end ─▶ orders/*.answer
"""

from __future__ import annotations

import logging
from types import TracebackType

from rayplane.control.mailbox import Mailbox
from rayplane.control.order import Answer, Order
from rayplane.control.service_state import Service, ServiceEvent
from rayplane.control.service_status import ServiceStatus
from rayplane.control.stop import Stop

log = logging.getLogger(__name__)


class ServiceOrders:
    """An observer of a service, which may stop it."""

    def __init__(self, mailbox: Mailbox, stop: Stop):
        self._mailbox, self._stop = mailbox, stop
        self._held: list[tuple[str, Order]] = []
        self._status: ServiceStatus | None = None

    def __enter__(self) -> ServiceOrders:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state, message = (self._status.state, self._status.message) if self._status else ("lost", "")
        said = f"it is {state}{f': {message}' if message else ''}"
        for key, order in self._held:
            self._reply(key, Answer(order.verb == "kill" or state == "drained", said))

    def on_event(self, service: Service, event: ServiceEvent) -> None:
        """Of no concern."""

    def on_status(self, status: ServiceStatus) -> None:
        """Look for orders."""
        self._status = status
        try:
            taken = self._mailbox.take()
        except OSError as error:
            log.warning("%s: %s; no order is taken", error.filename, error.strerror)
            return
        for key, order in taken:
            self._obey(key, order)

    def _obey(self, key: str, order: Order | Answer) -> None:
        match order:
            case Answer():
                self._reply(key, order)
            case Order(verb="stop" | "kill"):
                for _ in range(2 if order.verb == "kill" else 0 if self._held else 1):
                    self._stop.request()
                self._held.append((key, order))
            case _:
                self._reply(key, Answer(False, "a job that serves takes no such order"))

    def _reply(self, key: str, answer: Answer) -> None:
        try:
            self._mailbox.reply(key, answer)
        except OSError as error:
            log.warning("%s: %s; an order is not answered", error.filename, error.strerror)
