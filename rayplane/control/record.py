"""What a run adds up to beside its state, for state.json while it goes and for the result at its end.

What this run has not measured yet is taken from the run before: the held-out loss at the very beginning, the loss of the step from
which it goes on, the rate.
"""

from __future__ import annotations

import time

from rayplane.control.attempt import Attempt
from rayplane.control.failure import explain
from rayplane.control.journal import loss_of
from rayplane.control.result import Result, Tally
from rayplane.control.state import Failed, Killing, Replanning, State
from rayplane.control.status import Status, read_status, state_name, this_process
from rayplane.control.task import Task
from rayplane.spec.report import StepReport


class Record:
    """Follows one run; `state` is where it stands when it is asked."""

    def __init__(self, task: Task, state: State):
        began = state.progress.checkpoint
        known = read_status(task.directory)
        self._task, self._tally = task, Tally()
        self._holdout_before = known.holdout_before if known and began.path else None
        self._holdout_after: float | None = None
        self._losses_before = {began.step: loss_of(task.directory, began.step)} if began.path else {}
        self._rate_before = known.tokens_per_s if known and began.path else 0.0
        self._params = 0

    def new_attempt(self) -> None:
        """Every rank starts anew."""
        self._tally.new_attempt()

    def add(self, reports: tuple[StepReport, ...]) -> None:
        """Every rank has done a step."""
        self._tally.add(reports)

    def hear(self, attempt: Attempt) -> None:
        """What ranks have said at their start and end."""
        self._params = attempt.params or self._params
        self._holdout_after = attempt.holdout_after
        if self._holdout_before is None:
            self._holdout_before = attempt.holdout_before

    def status(self, state: State) -> Status:
        """For whoever looks from outside."""
        progress, task, (pid, host) = state.progress, self._task, this_process()
        return Status(
            name=task.launch.name,
            state=state_name(state),
            step=progress.step,
            steps=task.steps,
            loss=self._loss(state),
            tokens_per_s=self._tally.tokens_per_s or self._rate_before,
            layout=str(progress.arrangement.layout),
            restarts=progress.spent.total,
            checkpoint=progress.checkpoint.path,
            message=_message(state),
            pid=pid,
            host=host,
            updated_unix_s=time.time(),
            model=task.model,
            holdout_before=self._holdout_before,
        )

    def result(self, state: State, wall_s: float) -> Result:
        """The end of the run."""
        progress = state.progress
        return Result(
            state=state_name(state),
            message=_message(state),
            exit_code=state.exit_code if isinstance(state, Failed) else 0,
            step=progress.step,
            losses=self._tally.losses,
            final_loss=self._loss(state),
            holdout_before=self._holdout_before,
            holdout_after=self._holdout_after,
            tokens_per_s=self._tally.tokens_per_s,
            stages=self._tally.stages(),
            checkpoint=progress.checkpoint.path,
            restarts=progress.spent.total,
            params=self._params,
            wall_s=wall_s,
        )

    def _loss(self, state: State) -> float | None:
        """Of the last step that the job has done, in this run or before."""
        step = state.progress.step
        return self._tally.losses.get(step, self._losses_before.get(step))


def _message(state: State) -> str:
    match state:
        case Failed(message=message):
            return message
        case Killing(failures=failures) if failures:
            return explain(failures)
        case Replanning(why=why):
            return why
        case _:
            return ""
