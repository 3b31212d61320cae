"""Values as msgpack can write them: dataclasses as maps of their fields, enums as their values, sets as sorted lists."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """One level of a value; msgpack asks again for what is inside. TypeError for what does not travel."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} does not travel")
