"""What is asked of a serving cluster, and the planner's answer, as values.

demand    1,024 tokens in, 256 out, 20 requests/s; first token within 0.5 s and every other within 0.05 s, for 95% of the requests
plan      4 replicas of tp2 on 8 devices: first token 0.21 s, then 0.031 s; what else would meet it; what would not, and why
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayplane.plan.serving.serve import Terms
from rayplane.plan.serving.served import Cut
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of a kind, and how soon their tokens have to come."""

    prompt: int
    """Tokens in."""
    output: int
    """Tokens out."""
    rate: float | None
    """Requests a second, at random; None: as many as there can be."""
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    share: float = 0.95
    """Of the requests that have to meet both."""
    cached: float = 0.0
    """Share of a prompt that the prefix cache has."""
    longest: int = 0
    """Tokens of one sequence for which there must be room; 0: those of a usual one."""
    least: int = 1
    """Replicas at least."""
    most: int | None = None
    """Replicas at most; None: as many as there is room for."""
    most_devices: int | None = None
    """Of all replicas; None: as many as there are."""

    @property
    def limited(self) -> bool:
        """Whether a token may come too late."""
        return min(self.ttft_s, self.tpot_s) < math.inf

    @property
    def computed(self) -> int:
        """Tokens of a prompt that are to be computed."""
        return self.prompt - min(self.prompt - 1, round(self.cached * self.prompt))

    def __str__(self) -> str:
        limits = [f"{name} <= {1e3 * limit:g} ms" for name, limit in (("ttft", self.ttft_s), ("tpot", self.tpot_s)) if limit < math.inf]
        rate = "requests" if self.rate is None else f"{self.rate:g} requests/s"
        return ", ".join([*limits, f"{rate} of {self.prompt} + {self.output} tokens"])


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the requests: half of them take no longer, the demanded share, and 99 of 100."""

    p50_s: float
    share_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Option:
    """One way to cut and to copy, and what its requests meet."""

    cut: Cut
    replicas: int
    cores: int
    """Of a rank; 1 where devices are no cores."""
    rate: float
    """Requests a second of all replicas, at which it was played."""
    ttft: Times
    tpot: Times
    tokens_s: float
    """Output tokens per second of all replicas at that rate."""
    most_tokens_s: float
    """The same with a full batch."""
    cache_tokens: int
    """That a replica keeps."""
    sequences: int
    """Of the demanded lengths that a replica runs at a time at most."""
    weights_bytes: int
    """On the fullest rank."""
    prompt_terms: Terms
    """Of the step that computes one prompt alone; attention included."""
    decode_terms: Terms
    """Of a step in which as many sequences decode as come on average."""
    boundaries: tuple[int, ...] = ()
    """Layers per stage."""
    misses: tuple[str, ...] = ()
    """Limits that do not hold, in words."""

    @property
    def ttft_s(self) -> float:
        """Of the demanded share of the requests."""
        return self.ttft.share_s

    @property
    def tpot_s(self) -> float:
        """Of the demanded share of the requests."""
        return self.tpot.share_s

    @property
    def devices(self) -> int:
        """What it costs."""
        return self.cut.size * self.replicas * self.cores

    @property
    def layout(self) -> Layout:
        """In the words of the mesh."""
        return Layout(dp=self.replicas, pp=self.cut.pp, cp=self.cut.cp, tp=self.cut.tp, boundaries=self.boundaries)

    def __str__(self) -> str:
        return f"{self.replicas} x {named(self.cut, self.cores)}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A cut that cannot serve the demand, or not as cheaply."""

    cut: Cut
    reason: str
    cores: int = 1

    def __str__(self) -> str:
        return named(self.cut, self.cores)


@dataclass(frozen=True, slots=True)
class Saturated:
    """What requests meet where each replica has as many as it runs at a time, and more are always waiting."""

    at_once: int
    """Of a replica."""
    ttft_s: float
    """Mean; of it they wait for the others for the most part."""
    tpot_s: float
    tokens_s: float


@dataclass(frozen=True, slots=True)
class ServePlan:
    """The option that was chosen, where its stages go, and what became of the others."""

    demand: Demand
    best: Option
    placement: Placement
    saturated: Saturated
    rule: str
    """By which it was chosen, in words."""
    shortfall: str = ""
    """Why no option holds the limits, where none does."""
    runners_up: tuple[Option, ...] = ()
    """In order of preference."""
    refused: tuple[Refused, ...] = ()


def named(cut: Cut, cores: int) -> str:
    """A cut, and how many cores a rank of it has where that is more than one."""
    if cores == 1:
        return str(cut)
    return f"{cores} cores" if cut.size == 1 else f"{cut} of {cores} cores"
