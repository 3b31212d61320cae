"""One continuation of one prompt on its way through replicas, with all that is needed to go on elsewhere.

placed on a ──▶ tokens t0 t1 t2 ──▶ a dies ──▶ placed on b with prompt + t0 t1 t2 ──▶ t3 … ──▶ finished
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rayplane.api.errors import ApiError
from rayplane.api.router import Ask
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Progress, Submit


class Sink(Protocol):
    """Whom a flight's news is for. Called from the event loop; must not block."""

    def placed(self, replica: str) -> None:
        """A replica has the request now; it may be the first or another one."""

    def started(self, cached: int, queued_s: float) -> None:
        """The replica has begun."""

    def progress(self, progress: Progress) -> None:
        """Tokens have come, or the end. Ends are STOP, LENGTH and DEADLINE."""

    def failed(self, error: ApiError) -> None:
        """There will be no more tokens."""


@dataclass(slots=True, eq=False)
class Flight:
    """What was asked, what has come, and where it is. The fleet alone changes it."""

    prompt: tuple[int, ...]
    params: SamplingParams
    sink: Sink
    priority: int = 0
    session: str = ""
    salt: str = ""
    deadline_at: float | None = None
    """On the event loop's clock."""
    sibling: Flight | None = None
    """One of the same prompt, placed before this one."""
    generated: list[int] = field(default_factory=list)
    number: int = 0
    """By which its replica knows it; 0 where none has it."""
    replica: str = ""
    moves: int = 0
    """Replicas that were lost with it."""
    over: bool = False

    @property
    def ask(self) -> Ask:
        """What the router has to know of it."""
        left = self.params.max_tokens - len(self.generated)
        return Ask((*self.prompt, *self.generated), left, self.session, self.salt)

    def submit(self, now: float) -> Submit:
        """What the replica has to know of it."""
        left = None if self.deadline_at is None else max(0.0, self.deadline_at - now)
        shared = self.sibling
        fork = shared.number if shared and shared.replica == self.replica and not self.generated else 0
        tokens = tuple(self.generated)
        return Submit(self.number, self.prompt, self.params, self.priority, left, self.salt, tokens, fork)
