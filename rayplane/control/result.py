"""What a run came to, gathered step by step from the reports of all ranks.

tokens/s = tokens of the counted steps / sum of their wall times, a step lasting as long as its slowest rank;
with more than 3 steps the first of each attempt is warm-up and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayplane.spec.report import StageUse, StepReport, stage_use

WARM_UP_BELOW = 3
"""A run of at most so many steps counts them all."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run, as the CLI prints it. `losses` are those of this run's steps, by step."""

    state: str
    """finished, drained or failed."""
    message: str
    exit_code: int
    step: int
    losses: dict[int, float]
    final_loss: float | None
    """Training loss of the last step that the job has done, be it in an earlier run."""
    holdout_before: float | None
    holdout_after: float | None
    tokens_per_s: float
    stages: tuple[StageUse, ...]
    checkpoint: str
    restarts: int
    params: int
    wall_s: float


@dataclass(slots=True)
class _Sums:
    """Seconds and tokens of some steps."""

    steps: int
    tokens: int
    wall_s: float
    phases: dict[tuple[int, int], dict[str, float]]

    def add(self, reports: tuple[StepReport, ...]) -> None:
        self.steps += 1
        self.tokens += reports[0].tokens
        self.wall_s += max(r.wall_s for r in reports)
        for report in reports:
            of_stage = self.phases.setdefault((report.replica, report.stage), {})
            for phase, seconds in report.phases.items():
                of_stage[phase] = of_stage.get(phase, 0.0) + seconds


class Tally:
    """Adds up the steps of a run."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self._warm_up = _Sums(0, 0, 0.0, {})
        self._counted = _Sums(0, 0, 0.0, {})
        self._fresh = True

    def new_attempt(self) -> None:
        """The next step is a warm-up: caches are cold and buffers are not there yet."""
        self._fresh = True

    def add(self, reports: tuple[StepReport, ...]) -> None:
        """One finished step, as every rank saw it. A step that is done again after a restart replaces its loss."""
        self.losses[reports[0].step] = reports[0].loss
        (self._warm_up if self._fresh else self._counted).add(reports)
        self._fresh = False

    @property
    def tokens_per_s(self) -> float:
        """Throughput of the counted steps."""
        tokens = sum(s.tokens for s in self._used())
        return tokens / max(sum(s.wall_s for s in self._used()), 1e-9) if tokens else 0.0

    def stages(self) -> tuple[StageUse, ...]:
        """How each stage of each replica spent its time in the counted steps."""
        seconds: dict[tuple[int, int], dict[str, float]] = {}
        for sums in self._used():
            for place, phases in sums.phases.items():
                of_stage = seconds.setdefault(place, {})
                for phase, s in phases.items():
                    of_stage[phase] = of_stage.get(phase, 0.0) + s
        return tuple(stage_use(replica, stage, seconds[replica, stage]) for replica, stage in sorted(seconds))

    def _used(self) -> tuple[_Sums, ...]:
        few = self._warm_up.steps + self._counted.steps <= WARM_UP_BELOW or not self._counted.steps
        return (self._warm_up, self._counted) if few else (self._counted,)
