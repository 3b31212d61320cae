"""The user's orders to a running job, brought to its controller, and answered when they have been carried out.

orders/*.order ─Mailbox─▶ take ─meaning─▶ events ─▶ react ─▶ on_event ─outcome─▶ orders/*.answer
                           └─ scale, layout: first the planner, in a thread of its own
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rayplane.control.event import Event
from rayplane.control.mailbox import Mailbox
from rayplane.control.order import MOVES, URGENT, Answer, Order, leaving, meaning, movable, outcome
from rayplane.control.question import Question
from rayplane.control.state import Arrangement, Pending, State
from rayplane.control.status import state_name
from rayplane.errors import RayplaneError
from rayplane.spec.report import StepReport

LOOK_S = 0.2
"""How often the folder is looked into."""

log = logging.getLogger(__name__)


class OrderPlanner(Protocol):
    """Finds what an order that moves the job asks for."""

    def arrangement(self, order: Order, now: Arrangement) -> Arrangement:
        """May take long. Raises RayplaneError with the reason where there is none."""

    def accepted(self, order: Order) -> None:
        """The order is being carried out: whoever looks for better plans keeps to it from now on."""


@dataclass(slots=True)
class _Held:
    """An order that has not been answered."""

    key: str
    order: Order
    question: Question[Arrangement] | None = None
    wanted: Arrangement | None = None
    given: bool = False
    """Whether its events have been handed to the machine."""
    mark: Event | None = None
    """The last of these, until the machine has had it."""


class Orders:
    """A source of events, and an observer of what comes of them. Whoever is still waiting at its end is told that the job has ended."""

    def __init__(self, mailbox: Mailbox, planner: OrderPlanner, look_s: float = LOOK_S):
        self._mailbox, self._planner, self._look_every_s = mailbox, planner, look_s
        self._held: list[_Held] = []
        self._state: State = Pending()
        self._next_look_s = 0.0
        self._deaf = False

    def __enter__(self) -> Orders:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._next_look_s = 0.0
        self._look()
        for held in list(self._held):
            ended = Answer(False, f"the job's driver has ended: the job is {state_name(self._state)}")
            self._settle(held, (outcome(held.order, self._state, held.wanted) if held.given else None) or ended)

    def take(self, state: State) -> Sequence[Event]:
        """The events of the next order that can be carried out where the job stands."""
        self._look()
        for held in [held for held in self._held if not held.given]:
            if events := self._obey(held, state):
                return events
        return ()

    def urgent(self) -> bool:
        """Whether an order has come that no wait for places should hold up."""
        self._look()
        return any(held.order.verb in URGENT and not held.given for held in self._held)

    def on_event(self, state: State, event: Event) -> None:
        """Answer what has come to an end with it."""
        self._state = state
        for held in [held for held in self._held if held.given]:
            if held.mark is event:
                held.mark = None
            if held.mark is None and (answer := outcome(held.order, state, held.wanted)):
                self._settle(held, answer)

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """Of no concern."""

    def _obey(self, held: _Held, state: State) -> tuple[Event, ...]:
        if held.order.verb in MOVES and not leaving(state) and not held.wanted and not self._planned(held, state):
            return ()
        match meaning(held.order, state, held.wanted):
            case Answer() as answer:
                self._settle(held, answer)
            case tuple() as events:
                held.given, held.mark = True, events[-1] if events else None
                if held.order.verb in MOVES:
                    self._planner.accepted(held.order)
                return events
        return ()

    def _planned(self, held: _Held, state: State) -> bool:
        """Whether it is known what an order that moves the job asks for."""
        now = state.progress.arrangement
        if held.question is None and movable(state):
            held.question = Question(lambda: self._planner.arrangement(held.order, now))
        if held.question is None or not held.question.answered:
            return False
        try:
            held.wanted = held.question.answer()
        except RayplaneError as error:
            self._settle(held, Answer(False, str(error)))
        except Exception:  # a plan that fails must not cost the job
            log.exception("the planner failed")
            self._settle(held, Answer(False, "the planner failed; the log of the job's driver says why"))
        return held.wanted is not None

    def _look(self) -> None:
        if self._deaf or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + self._look_every_s
        try:
            taken = self._mailbox.take()
        except OSError as error:
            self._deaf = True
            log.warning("%s: %s; the job takes no more orders", error.filename, error.strerror)
            return
        for key, order in taken:
            if isinstance(order, Order):
                self._held.append(_Held(key, order))
            else:
                self._reply(key, order)

    def _settle(self, held: _Held, answer: Answer) -> None:
        self._held.remove(held)
        self._reply(held.key, answer)

    def _reply(self, key: str, answer: Answer) -> None:
        log.info("order %s: %s", key, answer.message)
        try:
            self._mailbox.reply(key, answer)
        except OSError as error:
            log.warning("%s: %s; an order is not answered", error.filename, error.strerror)
