"""Asks the planner now and then whether another arrangement pays, and brings BetterPlan when it does.

steps of all ranks ─▶ newest WINDOW_STEPS ─▶ of_reports ─┐
                            or what Prometheus shows  ───┴▶ flaw? ─▶ look (a thread) ─▶ decide ─▶ BetterPlan
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from rayplane.control.event import BetterPlan, Event, Started
from rayplane.control.leeway import Leeway
from rayplane.control.moves import Moves, followed
from rayplane.control.outlook import Outlook, flaw, look
from rayplane.control.question import Question
from rayplane.control.replan import Experience, Standing, decide, pointless, undecided
from rayplane.control.state import Arrangement, Progress, Running, State
from rayplane.errors import RayplaneError
from rayplane.plan.measured.observe import of_reports
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.observation import Observation
from rayplane.spec.report import StepReport

WINDOW_STEPS = 16
LEAST_STEPS = 8
STEADY_S = 5.0
"""The first steps of an attempt tell of caches and kernels that get warm."""
ASK_EVERY_S = 10.0
SHARE = 0.05
"""Of the time, at most, the planner is at work."""

Look = Callable[[], ClusterSpec]
See = Callable[[], Observation]
Found = tuple[Observation, Outlook]

log = logging.getLogger(__name__)


class Mover:
    """An observer of steps, and a source of events."""

    def __init__(self, leeway: Leeway, steps: int, devices: Look, see: See | None = None, steady_s: float = STEADY_S):
        """`devices`: the cluster as it is now. `see`: what was observed in the last `steady_s` seconds, where that is not to be known
        from the ranks' own reports. Both may take long.
        """
        self._leeway, self._num_steps, self._devices, self._see = leeway, steps, devices, see
        self._steady_s = steady_s
        self._moves, self._experience = Moves(), Experience()
        self._window: deque[Sequence[StepReport]] = deque(maxlen=WINDOW_STEPS)
        self._started_s = self._next_s = time.monotonic()
        self._question: Question[Found | str] | None = None
        self._said = ""

    def follow(self, leeway: Leeway) -> None:
        """The user has said what the job leaves to the planner from now on."""
        self._leeway, self._question = leeway, None

    def on_event(self, state: State, event: Event) -> None:
        """Follow what moving costs, and begin to watch anew with every start."""
        self._moves = followed(self._moves, state, event, time.monotonic())
        if isinstance(event, Started):
            self._window.clear()
            self._started_s = time.monotonic()

    def on_step(self, reports: Sequence[StepReport]) -> None:
        """One more step of all ranks."""
        self._window.append(reports)

    def take(self, state: State) -> Sequence[Event]:
        """A better plan, if there is one."""
        if not isinstance(state, Running):
            self._question = None  # whatever it finds is no longer about what runs
            self._experience = undecided(self._experience)
            return ()
        if self._question is None:
            if self._due(state.progress):
                self._ask(state.progress.arrangement)
            return ()
        if not self._question.answered:
            return ()
        question, self._question = self._question, None
        self._next_s = time.monotonic() + max(ASK_EVERY_S, question.took_s / SHARE)
        return self._concluded(state.progress, question)

    def urgent(self) -> bool:
        """It can wait."""
        return False

    def _due(self, progress: Progress) -> bool:
        now_s = time.monotonic()
        if len(self._window) < LEAST_STEPS or now_s < max(self._next_s, self._started_s + self._steady_s):
            return False
        step_s = median(max(report.wall_s for report in reports) for reports in self._window)
        return not pointless(self._experience, self._standing(progress, step_s, now_s))

    def _standing(self, progress: Progress, step_s: float, now_s: float) -> Standing:
        left, cost_s = self._num_steps - progress.step, self._moves.cost_s
        least = self._leeway.least or progress.arrangement.layout.size
        return Standing(now_s, progress.arrangement, step_s, left, float("inf") if cost_s is None else cost_s, least, self._leeway.most)

    def _ask(self, now: Arrangement) -> None:
        steps, leeway, devices, see = list(self._window), self._leeway, self._devices, self._see

        def find_out() -> Found | str:
            seen = see() if see else of_reports(report for reports in steps for report in reports)
            return flaw(seen, now.layout) or (seen, look(leeway, now, devices(), seen))

        self._question = Question(find_out)

    def _concluded(self, progress: Progress, question: Question[Found | str]) -> Sequence[Event]:
        try:
            found = question.answer()
        except RayplaneError as error:
            found = str(error)
        except Exception:  # advice that fails must not cost the job
            log.exception("the planner failed; the job goes on as it is")
            return ()
        if isinstance(found, str):
            self._hold(found)
            return ()
        seen, outlook = found
        standing = self._standing(progress, seen.step_s, time.monotonic())
        self._experience, decision = decide(self._experience, standing, outlook)
        log.info("%s: %s", decision.to.layout if decision.to else "stay", decision.why)
        return [BetterPlan(decision.to, decision.why)] if decision.to else ()

    def _hold(self, reason: str) -> None:
        """Once, as long as the reason is the same."""
        self._experience = undecided(self._experience)
        if reason != self._said:
            log.warning("no conclusions are drawn from measurements: %s", reason)
        self._said = reason
