"""The answers, whole and in pieces."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class PromptTokensDetails(Answer):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Found in the prefix cache."""


class Usage(Answer):
    """Tokens of all choices together; a prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(Answer):
    """One entry per token in each list."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    """Where the token begins in the answer's text, in characters."""


class CompletionChoice(Answer):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None
    """The stop string, or the stop token's id, where one ended the text."""


class Completion(Answer):
    """The answer to a completion request, and each piece of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(Answer):
    """A token that could have stood there."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """One entry per token."""

    content: list[ChatLogprob]


class ChatMessage(Answer):
    """The answer's turn."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | str | None = None


class ChatCompletion(Answer):
    """The answer to a chat request."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ModelCard(Answer):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "rayplane"
    max_model_len: int


class ModelList(Answer):
    """All of them: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeAnswer(Answer):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeAnswer(Answer):
    """The text of token ids."""

    prompt: str


class ReplicaHealth(Answer):
    """How a replica does."""

    id: str
    state: Literal["connecting", "live", "leaving", "lost"]
    reason: str = ""
    """Why it cannot be reached, or was lost."""
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


class HealthAnswer(Answer):
    """Whether requests can be served."""

    status: Literal["ok", "no replica", "draining"]
    replicas: list[ReplicaHealth]
