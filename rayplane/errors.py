"""The errors a user sees: each names what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class RayplaneError(Exception):
    """A failure with a message written for the user. `exit_code` is what the CLI exits with."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in what the user wrote. It prints as `jobs/bad.yaml:12: train.step: unknown field, did you mean 'steps'?`"""

    message: str
    field: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file and self.line else self.file
        return ": ".join(part for part in (where, self.field, self.message) if part)


class SpecError(RayplaneError):
    """The job, model or cluster description is wrong; holds every problem that was found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | Problem | str):
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


class PlacementError(RayplaneError):
    """The cluster cannot hold the layout; says what is missing."""


class CheckpointError(RayplaneError):
    """A checkpoint could not be written or read; says which one is still good."""


class DamagedError(CheckpointError):
    """A checkpoint is not what was written: its bytes differ, or some are gone. An older one may still be good."""


class DataError(RayplaneError):
    """The training data cannot be read."""


class NonFiniteError(RayplaneError):
    """A loss or gradient became NaN or infinite; names rank, step and microbatch."""


class RequestError(RayplaneError):
    """A request cannot be served as it was written. `field` is the one at fault; the endpoint answers 400."""

    def __init__(self, field: str, message: str):
        self.field = field
        super().__init__(f"{field}: {message}")
