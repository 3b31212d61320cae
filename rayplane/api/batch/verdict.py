"""What follows from what came back for a request.

| what came                        | what follows                                                                  |
|----------------------------------|-------------------------------------------------------------------------------|
| 200                              | it is written                                                                 |
| 4xx, or 504: its deadline passed | it is written as an error: the same request would meet the same again         |
| 429, 503 with Retry-After        | asked again when that is over, as often as it takes                           |
| nobody listens                   | the same, a second later                                                      |
| 408, other 5xx, broken off       | asked again after 1, 2, 4, 8 s; given up after MAX_TRIES, and not written     |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_TRIES = 5
AGAIN_S = 1.0
MAX_RETRY_AFTER_S = 60.0
MAX_FOREIGN = 1000
OK, TIMEOUT, BUSY, UNAVAILABLE, DEADLINE = 200, 408, 429, 503, 504


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer over HTTP."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """There was none."""

    reason: str
    sent: bool
    """Whether the request had been sent, and may be why."""


@dataclass(frozen=True, slots=True)
class Write:
    """It is an answer."""

    status: int
    body: Any
    request_id: str


@dataclass(frozen=True, slots=True)
class Again:
    """Ask once more, later."""

    after_s: float
    tried: bool
    """Whether the request itself may be why; else nothing else should be asked before either."""
    busy: bool = False
    """The service has enough to do."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It was tried often enough."""

    reason: str


Verdict = Write | Again | GiveUp


def verdict(came: Reply | Lost, tries: int) -> Verdict:
    """`tries`: how often the request itself has failed before."""
    if isinstance(came, Lost):
        return _tried(came.reason, tries) if came.sent else Again(AGAIN_S, tried=False)
    if came.status == BUSY or (came.status == UNAVAILABLE and came.retry_after_s is not None):
        after_s = min(MAX_RETRY_AFTER_S, AGAIN_S if came.retry_after_s is None else came.retry_after_s)
        return Again(after_s, tried=False, busy=came.status == BUSY)
    final = came.status == DEADLINE or (came.status < 500 and came.status != TIMEOUT)
    try:
        body = json.loads(came.body)
    except (ValueError, RecursionError):
        if came.status == OK:
            return _tried("200 with a body that is no JSON", tries)
        body = {"error": {"message": came.body[:MAX_FOREIGN].decode(errors="replace")}}  # of whatever stands before the service
    return Write(came.status, body, came.request_id or _id_of(body)) if final else _tried(_told(came.status, body), tries)


def _tried(reason: str, tries: int) -> Verdict:
    return GiveUp(reason) if tries + 1 >= MAX_TRIES else Again(AGAIN_S * 2**tries, tried=True)


def _id_of(body: Any) -> str:
    return str(body.get("id", "")) if isinstance(body, dict) else ""


def _told(status: int, body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else ""
    return f"{status}{f': {message}' if message else ''}"
