"""From what single ranks say to what the gang has done: a step is done when every rank has done it.

rank 0  started  step 1  step 2  checkpoint  ...  done        Started, StepDone, GangDone: when the last rank has said it
rank 1  started  step 1  step 2              ...  done        Saved, Warned, RankFailed, RankExited, RankLost: at once
"""

from __future__ import annotations

from rayplane.control.budget import kind_of
from rayplane.control.checkpoints import Checkpoint
from rayplane.control.event import GangDone, RankEvent, RankExited, RankFailed, RankLost, Saved, Started, StepDone, Warned
from rayplane.runtime.group import Message, RankMessage, step_report
from rayplane.spec.report import StepReport


class Attempt:
    """Where each rank of one attempt stands. Times are those of the caller's clock, in seconds."""

    def __init__(self, size: int, now_s: float):
        self.params = 0
        self.holdout_before: float | None = None
        self.holdout_after: float | None = None
        self._size = size
        self._heard_s = dict.fromkeys(range(size), now_s)
        self._oldest_s = now_s
        """No rank that is not done was heard last before that."""
        self._started: dict[int, int] = {}
        self._done: dict[int, bool] = {}
        self._steps: dict[int, int] = {}
        self._reports: dict[int, dict[int, StepReport]] = {}

    def fold(self, rank_message: RankMessage, now_s: float) -> list[RankEvent]:
        """Take in one message; the events that follow from it."""
        rank, message = rank_message.rank, rank_message.message
        match message["type"]:
            case "started":
                return self._on_started(rank, message, now_s)
            case "step":
                return self._on_step(rank, message, now_s)
            case "checkpoint":
                self._all_heard(now_s)
                return [Saved(Checkpoint(message["step"], message["path"]))]
            case "warning":
                return [Warned(message["message"])]
            case "done":
                return self._on_done(rank, message, now_s)
            case "failed":
                return [RankFailed(rank, kind_of(message["kind"]), message["message"], message.get("traceback", ""))]
            case "exit" if rank not in self._done:
                return [RankExited(rank, message.get("code") or 0, message.get("signal") or 0, message.get("log") or "")]
            case "lost" if rank not in self._done:
                return [RankLost(rank, message["reason"], kind_of(message.get("kind", "node")))]
            case _:
                return []

    def late(self, now_s: float, timeout_s: float) -> tuple[int, ...]:
        """Ranks that made no progress for so long; of these, only those that are furthest behind."""
        if now_s - self._oldest_s <= timeout_s:
            return ()  # asked at every look, of which there are as many as messages
        waited_for = {r: heard_s for r, heard_s in self._heard_s.items() if r not in self._done}
        self._oldest_s = min(waited_for.values(), default=now_s)
        silent = [r for r, heard_s in waited_for.items() if now_s - heard_s > timeout_s]
        behind = min((self._steps.get(r, -1) for r in silent), default=-1)
        return tuple(r for r in silent if self._steps.get(r, -1) == behind)

    def take(self, step: int) -> tuple[StepReport, ...]:
        """The reports of all ranks of a finished step, by rank; once."""
        reports = self._reports.pop(step)
        return tuple(reports[rank] for rank in sorted(reports))

    def _on_started(self, rank: int, message: Message, now_s: float) -> list[RankEvent]:
        self._heard_s[rank] = now_s
        self._started[rank] = message["step"]
        self.params = max(self.params, message.get("params") or 0)
        if message.get("holdout_loss") is not None:
            self.holdout_before = message["holdout_loss"]
        if len(self._started) < self._size:
            return []
        self._all_heard(now_s)
        return [Started(min(self._started.values()))]

    def _on_step(self, rank: int, message: Message, now_s: float) -> list[RankEvent]:
        report = step_report(message)
        self._heard_s[rank] = now_s
        self._steps[rank] = report.step
        of_step = self._reports.setdefault(report.step, {})
        of_step[rank] = report
        return [StepDone(report.step, report.loss)] if len(of_step) == self._size else []

    def _on_done(self, rank: int, message: Message, now_s: float) -> list[RankEvent]:
        self._heard_s[rank] = now_s
        self._done[rank] = message["drained"]
        if message.get("holdout_loss") is not None:
            self.holdout_after = message["holdout_loss"]
        return [GangDone(message.get("step", 0), any(self._done.values()))] if len(self._done) == self._size else []

    def _all_heard(self, now_s: float) -> None:
        self._heard_s = dict.fromkeys(self._heard_s, now_s)
