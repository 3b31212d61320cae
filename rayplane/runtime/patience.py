"""Waiting that has an end, and that can be told to end sooner: `give_up` is asked again and again.

while not there:   give_up() ──▶ GaveUp        later than wait_s ──▶ an error that says what was waited for
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class GaveUp(Exception):
    """Who waits was told to give up; nothing of what was begun is left."""


def never() -> bool:
    """For who waits to the end."""
    return False


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, and whether to go on."""

    wait_s: float
    give_up: Callable[[], bool] = never
