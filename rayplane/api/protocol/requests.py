"""The requests themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rayplane.api.protocol.sampling import Name, SamplingFields
from rayplane.api.protocol.section import MAX_INT, Section, TokenId

Ids = Annotated[tuple[TokenId, ...], Field(min_length=1)]
Many = Field(min_length=1, max_length=1024)
MaxTokens = Annotated[int, Field(ge=1, le=MAX_INT)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: str | Ids | Annotated[tuple[str, ...], Many] | Annotated[tuple[Ids, ...], Many]
    """Text or token ids, one prompt or several."""
    max_tokens: MaxTokens | None = None
    """16 when left out."""
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    """The text begins with the prompt."""
    add_special_tokens: bool | None = None
    """Whether a text gets the tokens that the model's texts begin with; it does unless this is false."""


class TextPart(Section):
    """A piece of a message; there is text only."""

    type: Literal["text"]
    text: str


class Message(Section):
    """A turn of the conversation. The fields after `name` are there so that an answer can be sent back as it came."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[tuple[TextPart, ...], Field(min_length=1)]
    name: Name | None = None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None

    @property
    def text(self) -> str:
        """What it says."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatFields(Section):
    """What is rendered to a prompt by the model's chat template."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=4096)]
    add_generation_prompt: bool | None = None
    """Whether the prompt ends with the beginning of an answer; it does unless this is false."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Values for the model's template."""


class ChatRequest(ChatFields, SamplingFields):
    """POST /v1/chat/completions."""

    max_completion_tokens: MaxTokens | None = None
    """As many as the context holds when left out."""
    max_tokens: MaxTokens | None = None
    """The older name of max_completion_tokens."""
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None


class TokenizeRequest(Section):
    """POST /tokenize: a text or a conversation."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[tuple[Message, ...], Field(min_length=1, max_length=4096)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    """Of a text."""


class DetokenizeRequest(Section):
    """POST /detokenize."""

    model: Name | None = None
    tokens: tuple[TokenId, ...]
