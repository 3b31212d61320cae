"""What an ingress and an engine say to each other: token ids only, never text.

    ingress ──Hello──▶ engine ──Welcome, Pulse──▶ ingress            a wrong secret closes the connection without an answer
    ingress ──Submit, Cancel, Leave──▶ engine
    engine  ──Tokens (one frame per step), Refused, Pulse (every PULSE_S), Leave──▶ ingress

A connection that ends takes its requests with it: the engine drops them as if they were cancelled, and the ingress sends them, with
the tokens they already have, to another replica. A request goes by its number, which its ingress counts up on each connection.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import NamedTuple

from rayplane.serve.outputs import TokenLogprob
from rayplane.serve.request import FinishReason
from rayplane.serve.sampling import SamplingParams

PULSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection."""

    secret: str
    ingress: str
    """Names the ingress in the engine's logs and metrics."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a Hello: who this replica is, and what it can hold."""

    replica: str
    model: str
    max_context: int
    """Tokens of a prompt with its answer."""
    block: int
    """Tokens of a cache block."""
    kv_tokens: int
    """Tokens that the cache holds."""
    max_sequences: int
    """Requests that run at a time; more of them wait."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A request. Text and stop strings stay with the ingress; `params.stop` is empty."""

    id: int
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    """Lower is served first."""
    deadline_s: float | None = None
    """Seconds from now after which it is ended, with what it has."""
    salt: str = ""
    """Only requests of one salt share cached prefixes."""
    generated: tuple[int, ...] = ()
    """Tokens that another replica has already given; they count as output, and the next random number is the one after theirs."""
    fork_of: int = 0
    """A request of this connection with the same prompt, whose prompt's cache this one may share; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this request any more; it may have ended in the meantime."""

    id: int


@dataclass(frozen=True, slots=True)
class Leave:
    """From an engine: send no new requests, what runs is finished. From an ingress: it has finished, and will close."""


class Started(NamedTuple):
    """A request was admitted in this step."""

    id: int
    cached: int
    """Tokens of its prompt that the prefix cache had."""
    queued_s: float
    """How long it waited in the engine."""


class Progress(NamedTuple):
    """What a step gave one request."""

    id: int
    tokens: tuple[int, ...]
    """With the stop token, where one ended it."""
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token, where they were asked for."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """All that one step gave to the requests of one ingress."""

    progress: tuple[Progress, ...]
    started: tuple[Started, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine cannot serve this request at all; `message` says why, and `field` names the request's field, if it is one's fault."""

    id: int
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """A sign of life with what the replica holds."""

    step: int
    """Steps done."""
    oldest_s: float
    """Age of the oldest step in flight; 0 when there is none."""
    expected_s: float
    """What that step should take by the seconds per token of recent steps; the ingress gives it several times as long."""
    waiting: int
    running: int
    kv_used: int
    """Tokens that the cache holds for requests that run."""
    kv_tokens: int
    preemptions: int
    """Since the replica started, as what follows."""
    drafted: int = 0
    """Tokens that were guessed and computed."""
    accepted: int = 0
    """Of those, which were right."""


Frame = Hello | Welcome | Submit | Cancel | Leave | Tokens | Refused | Pulse


def admits(hello: Hello, secret: str) -> bool:
    """Whether the ingress knows the secret; takes equally long however much of it is right."""
    return hmac.compare_digest(hello.secret.encode(), secret.encode())
