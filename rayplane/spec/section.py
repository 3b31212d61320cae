"""What every part of a job file has in common, and the kinds of numbers in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the job file: unknown fields are errors, values do not change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Degree = Annotated[int, Field(gt=0, le=10**6)]
"""Above these bounds nobody trains, and a slip of the keyboard would keep the planner busy for hours."""
