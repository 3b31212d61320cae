"""Requests become continuations: text is tokenised, limits are checked, and every continuation gets a seed.

{"prompt": ["a", "b"], "n": 2, "seed": 7}  ──▶  a with seed 7, a with seed 7 + SEED_STEP, b with seed 7, b with seed 7 + SEED_STEP
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace

from rayplane.api.errors import ApiError, invalid
from rayplane.api.generation import Wanted
from rayplane.api.protocol.requests import ChatRequest, CompletionRequest, Message, TokenizeRequest
from rayplane.api.protocol.sampling import Bounds, SamplingFields, sampling_params
from rayplane.api.template import ChatTemplate
from rayplane.api.tokenizer import TextTokenizer
from rayplane.serve.sampling import SEEDS, SamplingParams
from rayplane.serve.stops import StopStrings

DEFAULT_MAX_TOKENS = 16
"""Of completions, as OpenAI has it."""
SEED_STEP = 0x9E3779B97F4A7C15
LONG_TEXT = 20_000
"""Characters from which on a text is tokenised in a thread: other streams must not wait for it."""

Ids = tuple[int, ...]


class Orders:
    """Knows the model's texts and limits."""

    def __init__(self, tokenizer: TextTokenizer, max_context: int, bounds: Bounds):
        """`bounds`: what the model has, beside what the tokenizer knows."""
        self.tokenizer, self.max_context = tokenizer, max_context
        self._bounds = bounds
        self._template = ChatTemplate(tokenizer.chat_template, tokenizer.words)

    async def completion(self, body: CompletionRequest) -> tuple[list[Wanted], list[str]]:
        """(continuations of all prompts, n of each; what each one's text begins with). ApiError names the field at fault."""
        if body.echo and body.logprobs is not None:
            raise invalid("echo", "logprobs of prompts are not served; leave out echo or logprobs")
        prompts = [await self._ids(prompt, body.add_special_tokens is not False) for prompt in _prompts(body)]
        out: list[Wanted] = []
        for prompt in prompts:
            room = self._room(prompt, "prompt")
            max_tokens = self._max_tokens(prompt, body.max_tokens, "max_tokens") if body.max_tokens else min(DEFAULT_MAX_TOKENS, room)
            out += self._wanted(body, prompt, sampling_params(body, max_tokens, body.logprobs, self._bounds))
        skip = body.skip_special_tokens is not False
        echoes = [self.tokenizer.decode(want.prompt, skip) if body.echo else "" for want in out]
        return out, echoes

    async def chat(self, body: ChatRequest) -> list[Wanted]:
        """n continuations of the conversation. ApiError names the field at fault."""
        if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
            raise invalid("max_tokens", f"max_completion_tokens is {body.max_completion_tokens}; leave max_tokens out")
        if body.top_logprobs is not None and not body.logprobs:
            raise invalid("top_logprobs", "is for logprobs: true only")
        prompt = await self.conversation(body.messages, body.add_generation_prompt, body.chat_template_kwargs)
        room = self._room(prompt, "messages")
        name = "max_completion_tokens" if body.max_completion_tokens else "max_tokens"
        asked = body.max_completion_tokens or body.max_tokens
        max_tokens = self._max_tokens(prompt, asked, name) if asked else room
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._wanted(body, prompt, sampling_params(body, max_tokens, logprobs, self._bounds))

    async def tokens(self, body: TokenizeRequest) -> Ids:
        """Ids of a text or a conversation."""
        if (body.prompt is None) == (body.messages is None):
            raise invalid("prompt", "give exactly one of prompt and messages")
        if body.messages is not None:
            return await self.conversation(body.messages, body.add_generation_prompt, body.chat_template_kwargs)
        return await self._encoded(body.prompt or "", body.add_special_tokens is not False)

    async def conversation(self, messages: Sequence[Message], begin_answer: bool | None, values: dict[str, object] | None) -> Ids:
        """Ids of a conversation."""
        return await self._encoded(self._template.render(messages, begin_answer is not False, values or {}), special=False)

    async def _ids(self, prompt: str | Ids, special: bool) -> Ids:
        if isinstance(prompt, str):
            return await self._encoded(prompt, special)
        if (beyond := max(prompt)) >= self._bounds.vocab:
            raise invalid("prompt", f"{beyond} is no token; ids are below {self._bounds.vocab}")
        return prompt

    async def _encoded(self, text: str, special: bool) -> Ids:
        if len(text) < LONG_TEXT:
            return self.tokenizer.encode(text, special)
        return await asyncio.to_thread(self.tokenizer.encode, text, special)

    def _room(self, prompt: Ids, field: str) -> int:
        """Tokens that the context leaves for the answer."""
        if not prompt:
            raise invalid(field, "it has no tokens; give at least one")
        if len(prompt) >= self.max_context:
            message = f"{field}: {len(prompt)} tokens, but the context holds {self.max_context} with the answer; shorten it"
            raise ApiError(400, message, field, "context_length_exceeded")
        return self.max_context - len(prompt)

    def _max_tokens(self, prompt: Ids, asked: int, field: str) -> int:
        if len(prompt) + asked > self.max_context:
            held = f"the context holds {self.max_context}"
            message = f"{field}: {len(prompt)} tokens of the prompt and {asked} to generate, but {held}; shorten one of them"
            raise ApiError(400, message, field, "context_length_exceeded")
        return asked

    def _wanted(self, body: SamplingFields, prompt: Ids, params: SamplingParams) -> list[Wanted]:
        skip = body.skip_special_tokens is not False
        first_seed = secrets.randbelow(SEEDS) if params.seed is None else params.seed
        out = []
        for number in range(body.n or 1):
            seeded = replace(params, seed=_seed(first_seed, number), include_stop=bool(body.include_stop_str_in_output))
            stops = StopStrings(body.stops, bool(body.include_stop_str_in_output))
            out.append(Wanted(prompt, seeded, self.tokenizer.decoder(skip), stops, first=number == 0))
        return out


def _prompts(body: CompletionRequest) -> Sequence[str | Ids]:
    """One or several prompts as several."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt[0], int):
        return (tuple(i for i in prompt if isinstance(i, int)),)
    return tuple(p for p in prompt if not isinstance(p, int))


def _seed(first: int, number: int) -> int:
    """The seed of the continuation of that number: the first one's is what was asked for."""
    return (first + number * SEED_STEP + SEEDS) % (2 * SEEDS) - SEEDS
