"""Whole numbers in what a published model says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rayplane.errors import Problem, SpecError


def whole(values: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    """A whole number above 0 from a model's own description; its absence is an error unless there is a default."""
    value = values.get(key)
    value = default if value is None else value
    if value is None:
        raise SpecError(Problem(f"{name} lacks {key}", "model.path"))
    if type(value) is not int or value < 1:
        raise SpecError(Problem(f"{key} of {name} is {value!r}; one whole number above 0 is supported", "model.path"))
    return value
