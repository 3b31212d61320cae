"""Calls to actors that cannot block for long: answers with a deadline and a way out, and Ray's errors in one line.

The actor died unexpectedly … class_name … The actor is dead because its worker process has died. … Some common causes …
      ──▶ The actor is dead because its worker process has died. …
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from rayplane.errors import RayplaneError
from rayplane.runtime.patience import GaveUp

ANSWER_TIMEOUT_S = 60.0
LOOK_S = 0.2
"""How often a way out is looked for."""
CAUSE = "The actor is dead because"
ADVICE = " Some common causes include"


def answers(calls: Sequence[Any], what: str, give_up: Callable[[], bool], timeout_s: float = ANSWER_TIMEOUT_S) -> list[Any]:
    """What the calls return, in order. `what`, as in "every stage actor came up", is for the errors. Raises RayplaneError, GaveUp."""
    end_s = time.monotonic() + timeout_s
    waiting = list(calls)
    while waiting:
        if give_up():
            raise GaveUp
        if time.monotonic() >= end_s:
            raise RayplaneError(f"not {what} within {timeout_s:g} s")
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_S)
    try:
        return list(ray.get(list(calls)))
    except RayError as error:
        raise RayplaneError(f"not {what}: {brief(error)}") from error


def brief(error: Exception) -> str:
    """The reason that Ray gives, without the actor's particulars and general advice."""
    text = " ".join(str(error).split())
    return text[max(0, text.find(CAUSE)) :].partition(ADVICE)[0]
