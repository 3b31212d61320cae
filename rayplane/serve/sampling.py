"""How the next token is chosen from its logits, and when to stop: the values of OpenAI's API and those that its users expect beside.

field        neutral    others
temperature  1.0        0 takes the most likely token
top_k        0          of the k most likely tokens only
seed         None       the same seed and prompt give the same text, whatever else is in the batch
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from rayplane.errors import RequestError

SEEDS = 2**63


class Grammar(Enum):
    """Kinds of structure that an output can be held to."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    EBNF = "ebnf"


@dataclass(frozen=True, slots=True)
class Structure:
    """What the output must look like: a grammar's kind and its source text (empty for JSON_OBJECT)."""

    kind: Grammar
    source: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """RequestError names the first field that makes no sense."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    """Tokens less likely than this share of the most likely one are left out."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, added to its logit)."""
    logprobs: int | None = None
    """Most likely tokens to report beside the chosen one; None reports nothing."""
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    include_stop: bool = False
    """The stop string is part of the text."""
    min_tokens: int = 0
    max_tokens: int = 16
    ignore_eos: bool = False
    structure: Structure | None = None

    def __post_init__(self) -> None:
        for name, value, low, high in self._ranges():
            if not (math.isfinite(value) and low <= value <= high):
                raise RequestError(name, f"{value} is out of range; give {_words(low, high)}")
        if self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", f"{self.min_tokens} is above max_tokens, {self.max_tokens}; lower it")
        if any(not text for text in self.stop):
            raise RequestError("stop", "a stop string is empty; leave it out")
        if self.repetition_penalty == 0:
            raise RequestError("repetition_penalty", "0 is out of range; give more than 0, 1 for none")
        for token, bias in self.logit_bias:
            if token < 0 or not math.isfinite(bias):
                raise RequestError("logit_bias", f"token {token} with bias {bias} makes no sense; give a token id and a finite number")

    def _ranges(self) -> tuple[tuple[str, float, float, float], ...]:
        """(field, value, least, most)."""
        return (
            ("temperature", self.temperature, 0, math.inf),
            ("top_p", self.top_p, 0, 1),
            ("top_k", self.top_k, 0, math.inf),
            ("min_p", self.min_p, 0, 1),
            ("repetition_penalty", self.repetition_penalty, 0, math.inf),
            ("presence_penalty", self.presence_penalty, -math.inf, math.inf),
            ("frequency_penalty", self.frequency_penalty, -math.inf, math.inf),
            ("seed", self.seed or 0, -SEEDS, SEEDS - 1),
            ("logprobs", self.logprobs or 0, 0, math.inf),
            ("min_tokens", self.min_tokens, 0, math.inf),
            ("max_tokens", self.max_tokens, 1, math.inf),
        )


def _words(low: float, high: float) -> str:
    if math.isinf(high):
        return "a finite number" if math.isinf(low) else f"{low} or more"
    return f"{low} to {high}"
