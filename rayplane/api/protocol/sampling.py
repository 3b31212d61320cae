"""The fields that completions and chat completions share: how tokens are chosen, when to stop, and how the answer comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rayplane.api.errors import invalid, refused
from rayplane.api.protocol.formats import FormatFields
from rayplane.api.protocol.section import MAX_INT, Count, Section, TokenId
from rayplane.errors import RequestError
from rayplane.serve.sampling import SEEDS, SamplingParams

StopText = Annotated[str, Field(min_length=1, max_length=1000)]
Name = Annotated[str, Field(max_length=512)]


class StreamOptions(Section):
    """How a stream ends."""

    include_usage: bool | None = None
    """A last chunk without choices counts the tokens."""
    include_obfuscation: bool | None = None
    """Nothing is obfuscated in any case."""


class SamplingFields(FormatFields):
    """Of OpenAI's fields those without a comment mean what they mean there."""

    model: Name
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: StopText | Annotated[tuple[StopText, ...], Field(max_length=16)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """Token ids, as text, to what is added to their logits."""
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS)] | None = None
    """The same seed and prompt give the same text, whatever else is served."""
    user: Name | None = None
    """Requests of one user go to the replica that has their texts in its cache, while its load allows."""
    prompt_cache_key: Name | None = None
    """As `user`, and before it."""
    safety_identifier: Name | None = None
    """Taken and not used."""

    top_k: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    """Only the k most likely tokens; 0 or -1 for all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Only tokens at least this share as likely as the most likely one."""
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    min_tokens: Count | None = None
    """Nothing but max_tokens ends the text before."""
    ignore_eos: bool | None = None
    """The end-of-text token does not end the text."""
    stop_token_ids: Annotated[tuple[TokenId, ...], Field(max_length=256)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    """Whether special tokens are left out of the text; they are unless this is false."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """Lower is served first."""
    cache_salt: Name | None = None
    """Only requests of one salt share cached prefixes."""

    @property
    def session(self) -> str:
        """Who asks again and again."""
        return self.prompt_cache_key or self.user or ""

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the model and its context leave to a request."""

    vocab: int
    end_tokens: frozenset[int]


def sampling_params(fields: SamplingFields, max_tokens: int, logprobs: int | None, bounds: Bounds) -> SamplingParams:
    """The engine's parameters; end-of-text tokens are stop tokens there. ApiError names the field that makes no sense."""
    if fields.stream_options is not None and not fields.stream:
        raise invalid("stream_options", "is for streams only; set stream, or leave it out")
    stop_tokens = frozenset(fields.stop_token_ids or ()) | (frozenset() if fields.ignore_eos else bounds.end_tokens)
    if (beyond := max(fields.stop_token_ids or (), default=0)) >= bounds.vocab:
        raise invalid("stop_token_ids", f"{beyond} is no token; ids are below {bounds.vocab}")
    try:
        return SamplingParams(
            temperature=_or(fields.temperature, 1.0),
            top_p=_or(fields.top_p, 1.0),
            top_k=max(0, fields.top_k or 0),
            min_p=_or(fields.min_p, 0.0),
            repetition_penalty=_or(fields.repetition_penalty, 1.0),
            presence_penalty=_or(fields.presence_penalty, 0.0),
            frequency_penalty=_or(fields.frequency_penalty, 0.0),
            seed=fields.seed,
            logit_bias=_logit_bias(fields.logit_bias or {}, bounds.vocab),
            logprobs=logprobs,
            stop_tokens=stop_tokens,
            min_tokens=fields.min_tokens or 0,
            max_tokens=max_tokens,
            ignore_eos=bool(fields.ignore_eos),
            structure=fields.structure(),
        )
    except RequestError as error:
        raise refused(error) from None


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(biases: dict[str, float], vocab: int) -> tuple[tuple[int, float], ...]:
    out = []
    for text, bias in biases.items():
        token = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else vocab
        if token >= vocab:
            raise invalid("logit_bias", f"{text[:20]!r} is no token; ids are from 0 to {vocab - 1}")
        out.append((token, bias))
    return tuple(out)
