"""What a user asks for, and what is held of it while it is served.

tokens    p p p p p o o        the prompt and what was generated; the last is not computed yet
computed  6                    whose keys and values are in the cache, or on their way there in a batch that has not returned
gap       1                    tokens - computed: what the scheduler has to close. 0 or, with drafts, less: the next token is awaited
drafts    d d                  guesses of the tokens after the last one, computed along with it and kept as far as they are right

WAITING ──admitted──▶ RUNNING ──last token──▶ FINISHED
   ▲                     │
   └──────preempted──────┘       blocks returned, computed = 0, tokens kept
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rayplane.errors import RequestError
from rayplane.serve.ngram import PromptLookup
from rayplane.serve.sampling import SamplingParams

Rank = tuple[float, int]
"""(arrival_s + priority * patience_s, number): the lower, the sooner served and the later preempted."""


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    """A stop token, an end-of-text token, or a stop string."""
    LENGTH = "length"
    """max_tokens, or the longest context."""
    ABORT = "abort"
    """The client has gone."""
    DEADLINE = "deadline"
    """Its time was up."""


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it. n > 1 completions are n requests, all but the first with `fork_of` the first."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    arrival_s: float = 0.0
    priority: int = 0
    """Lower is served first."""
    deadline_s: float | None = None
    """When it ends unfinished, on the clock of `arrival_s`."""
    salt: str = ""
    """Model and adapter: only requests of one salt share cached prefixes."""
    fork_of: str = ""
    """Another request of the same prompt, whose computed prompt this one shares down to its last, unfilled block."""
    generated: tuple[int, ...] = ()
    """Tokens already generated elsewhere, before this request came here; they count as output."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("prompt", "it is empty; give at least one token")


@dataclass(slots=True, eq=False)
class Sequence:
    """A request while it is served. Only the scheduler and its cache change it."""

    request: Request
    number: int
    """Its name inside the engine, on every rank."""
    rank: Rank
    max_length: int
    """Most tokens it may grow to."""
    end_tokens: frozenset[int]
    """What ends it, once it has its min_tokens."""
    tokens: list[int]
    state: State = State.WAITING
    computed: int = 0
    in_flight: int = 0
    """Batches with tokens of it that have not returned."""
    drafts: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    """Of its full blocks, each chained to the one before."""
    registered: int = 0
    """Blocks of it that others can find in the prefix cache, or that were found there."""
    row: int = -1
    """Of the block tables; -1 when it holds no blocks."""
    cached: int = 0
    """Prompt tokens that were found in the cache when it was first admitted."""
    started_s: float | None = None
    """When it was first admitted."""
    finish: FinishReason | None = None
    shareable: bool = False
    """Its prompt has been computed, by batches that have returned: a fork may share it."""
    parent: Sequence | None = None
    """The sequence that it is a fork of, until it is admitted."""
    lookup: PromptLookup | None = None
    """Where its drafts come from."""

    @property
    def gap(self) -> int:
        """Tokens to compute before the next one can be known."""
        return len(self.tokens) - self.computed

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.prompt)
