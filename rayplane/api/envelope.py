"""What stands on every answer, and around the pieces of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel

from rayplane.api.choice import Delta
from rayplane.api.protocol.responses import Usage


@dataclass(frozen=True, slots=True)
class Envelope:
    """Of one answer."""

    id: str
    created: int
    """In s since 1970."""
    model: str


def new_envelope(prefix: str, model: str) -> Envelope:
    """For an answer that begins now."""
    return Envelope(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), model)


class Form(Protocol):
    """How the answer to one request is written."""

    def opening(self) -> list[str]:
        """Chunks before the first text, as JSON."""

    def chunk(self, index: int, delta: Delta) -> str:
        """A piece of the stream, as JSON."""

    def last(self, usage: Usage) -> str:
        """The chunk that counts the tokens, as JSON."""

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> BaseModel:
        """The answer in one."""
