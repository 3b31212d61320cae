"""What was made last, to be used again: as much as is likely to be asked for soon, and no more.

size 2      a ─▶ made   b ─▶ made   a ─▶ known   c ─▶ made, b is forgotten
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key; beyond `size` of them the one that was not used for longest goes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there."""
        value = self._values.pop(key, None)
        if value is None:
            value = make()
            if len(self._values) >= self._size:
                del self._values[next(iter(self._values))]
        self._values[key] = value
        return value
