"""The `serve` section of a job file: a model behind HTTP, how soon its tokens have to come, and how much is asked of it.

serve:
  port: 8000
  max_context: 4096
  kv: {dtype: auto, memory: 0.9, block: 16, prefix_cache: true}
  slo: {ttft_ms: 500, tpot_ms: 50}
  load: {requests_s: 2, prompt_tokens: 1024, output_tokens: 256}
  replicas: {min: 1, max: 4}
  queue: {max_requests: 256}
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rayplane.spec.layout import Layout
from rayplane.spec.section import Degree, Positive, PositiveInt, Section


class KvSection(Section):
    """The cache of keys and values."""

    dtype: Literal["auto", "bf16", "fp32", "int8", "fp8"] = "auto"
    """`auto` is the model's own. int8 and fp8 have a scale for each head, and keep about twice as many tokens."""
    memory: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a device's memory for weights, workspace and cache together; the cache gets what the others leave."""
    block: Annotated[int, Field(gt=0, le=1024)] = 16
    """Tokens per block, the unit in which the cache is given out and shared."""
    prefix_cache: bool = True
    """Whether blocks of a prompt that was seen before are used again."""


class SloSection(Section):
    """How soon tokens have to come; the planner chooses layout and replicas for it. What is left out may take any time."""

    ttft_ms: Positive | None = None
    """From a request's arrival to its first token."""
    tpot_ms: Positive | None = None
    """Mean time between its tokens after that."""
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95.0
    """Percent of the requests that have to meet both."""


class LoadSection(Section):
    """What is asked of the service, as far as the planner has to know; nothing of it is enforced."""

    requests_s: Annotated[float, Field(gt=0, le=10**9)] | None = None
    """Requests a second, at random. Without it the planner serves as many as the devices can, see `rayplane plan`."""
    prompt_tokens: PositiveInt | None = None
    """Tokens of a usual prompt; 1024 when left out, or three quarters of max_context where that is less."""
    output_tokens: PositiveInt | None = None
    """Tokens of a usual answer; 256 when left out, or a quarter of max_context where that is less."""
    cached: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of a prompt's tokens that the prefix cache usually has, such as those of a system prompt."""


class ReplicasSection(Section):
    """How many copies of the model there are."""

    min: Degree = 1
    max: Degree | None = None
    """As many as the devices hold when left out."""
    hold_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """How long requests may wait while the only replica makes room for one of another layout; with 0 it does so only where other
    devices are free. Whether layouts change at all says limits.replan."""


class QueueSection(Section):
    """What waits."""

    max_requests: PositiveInt = 256
    """Requests that may wait for a replica; one more is told to come again later (429)."""
    deadline_s: Positive | None = None
    """A request that is not done by then is ended; never when left out."""


class BatchSection(Section):
    """What one step of a replica takes."""

    max_tokens: PositiveInt | None = None
    """Tokens of prompts and answers together; a longer prompt is computed in chunks. Fewer keep answers steady, more are faster.
    8192 when left out, 512 on CPUs."""
    max_sequences: PositiveInt = 256
    """Requests that are answered at a time."""


class SpeculativeSection(Section):
    """Tokens are guessed and checked together; the text stays the same."""

    method: Literal["ngram"] = "ngram"
    """What the guess is: `ngram` goes on as the text did where its last tokens stood before."""
    tokens: Annotated[int, Field(gt=0, le=32)] = 4
    """Guessed at a time."""
    match: Annotated[int, Field(gt=0, le=16)] = 3
    """How many of the last tokens must have stood there, at most."""


class KeysSection(Section):
    """Who may ask: whoever sends one of these keys as a bearer token. Exactly one of the two."""

    file: str | None = None
    """A file with a key on each line."""
    env: str | None = None
    """An environment variable with keys, separated by commas."""


class ServeSection(Section):
    """A serving job."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes a free one and prints it."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines ask."""
    model_name: Annotated[str, Field(min_length=1)] | None = None
    """What requests call the model; the job's name when left out."""
    tokenizer: str = "model"
    """`model` (the one that model.path brings along), `bytes`, a tokenizer.json, a .gguf file, or a Hugging Face folder."""
    max_context: PositiveInt | None = None
    """Tokens of a prompt with its answer at most; what the model was made for when left out."""
    kv: KvSection = KvSection()
    slo: SloSection = SloSection()
    load: LoadSection = LoadSection()
    replicas: ReplicasSection = ReplicasSection()
    queue: QueueSection = QueueSection()
    batch: BatchSection = BatchSection()
    speculative: SpeculativeSection | None = None
    """Nothing is guessed when left out; `speculative: {}` guesses by n-grams."""
    api_keys: KeysSection | None = None
    """Everyone may ask when left out."""
    max_body_mb: Positive = 8.0
    """Largest request, in 10^6 bytes."""
    drain_s: Positive = 30.0
    """How long requests that run may go on when the service or a replica is stopped."""


class ServeLayoutSection(Section):
    """How the model is cut. What is left out is 1; `dp`, the replicas, is chosen by the planner when left out."""

    dp: Degree | None = None
    """Replicas."""
    pp: Degree = 1
    """Stages of a replica."""
    cp: Degree = 1
    """Ranks that share each prompt, and its keys and values."""
    tp: Degree = 1
    """Ranks that share each layer."""

    def layout(self, replicas: int) -> Layout:
        """As a value; `replicas` is used when the job leaves it to the planner."""
        return Layout(dp=self.dp or replicas, pp=self.pp, cp=self.cp, tp=self.tp)
