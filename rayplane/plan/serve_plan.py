"""What is asked of a serving cluster, and the planner's answer, as values.

demand    1,024 tokens in, 256 out, 20 requests/s; first token within 0.5 s and every other within 0.05 s, for 95% of the requests
plan      4 replicas of tp2 on 8 devices: first token 0.21 s, then 0.031 s; what else would meet it; what would not, and why
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayplane.plan.serve import Terms
from rayplane.plan.served import Cut
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests of a kind, and how soon their tokens have to come."""

    prompt: int
    """Tokens in."""
    output: int
    """Tokens out."""
    rate: float
    """Requests a second, at random."""
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    share: float = 0.95
    """Of the requests that have to meet both."""

    def __str__(self) -> str:
        limits = [f"{name} <= {1e3 * limit:g} ms" for name, limit in (("ttft", self.ttft_s), ("tpot", self.tpot_s)) if limit < math.inf]
        return ", ".join([*limits, f"{self.rate:g} requests/s of {self.prompt} + {self.output} tokens"])


@dataclass(frozen=True, slots=True)
class Option:
    """One way to cut and to copy, and what its requests meet at the demanded rate."""

    cut: Cut
    replicas: int
    ttft_s: float
    """Of the demanded share of the requests."""
    tpot_s: float
    tokens_s: float
    """Output tokens per second of all replicas."""
    cache_tokens: int
    """That a replica keeps."""
    prompt_terms: Terms
    """Of the step that computes one prompt alone; attention included."""
    decode_terms: Terms
    """Of a step in which as many sequences decode as come on average."""

    @property
    def devices(self) -> int:
        """What it costs."""
        return self.cut.size * self.replicas

    @property
    def layout(self) -> Layout:
        """In the words of the mesh."""
        return Layout(dp=self.replicas, pp=self.cut.pp, cp=self.cut.cp, tp=self.cut.tp)

    def __str__(self) -> str:
        return f"{self.replicas} x {self.cut}"


@dataclass(frozen=True, slots=True)
class Refused:
    """A cut that cannot serve the demand, or not as cheaply."""

    cut: Cut
    reason: str


@dataclass(frozen=True, slots=True)
class ServePlan:
    """The cheapest option that meets the demand, where its stages go, and what became of the others."""

    demand: Demand
    best: Option
    placement: Placement
    runners_up: tuple[Option, ...] = ()
    """In order of preference."""
    refused: tuple[Refused, ...] = ()
