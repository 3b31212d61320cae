"""What comes back: from the last stage to the scheduler, and from the scheduler to whoever asked.

last stage ──Sampled, one per sequence that was due a token──▶ Scheduler.update ──Output, one per sequence that moved──▶ stream
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rayplane.serve.request import FinishReason


class TokenLogprob(NamedTuple):
    """Of one generated token, in nats."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob) of the most likely ones, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens chosen for one sequence in a step: as many drafts as were right, then one more.

    A draft is right where the token chosen at its place equals it; the first token that does not is the one more.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One entry per token, handed on as it is; None where none were asked for."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """How a scheduler stands; what counts up does so since its start."""

    num_waiting: int
    num_running: int
    num_in_flight: int
    """Batches that are not back."""
    kv_usage_ratio: float
    num_preemptions: int
    prefix_asked_tokens: int
    """Tokens of admitted sequences that might have been in the prefix cache."""
    prefix_hit_tokens: int
    num_drafted_tokens: int
    """Guesses that were computed."""
    num_accepted_tokens: int
    """Of those, which were right."""


@dataclass(frozen=True, slots=True)
class Output:
    """What is new of one request."""

    id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: FinishReason | None
    num_output: int
    """Tokens generated so far, these included."""
    num_cached: int
    """Prompt tokens that were found in the prefix cache."""
