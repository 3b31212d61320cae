"""Chat completions: how they are answered.

data: {"id":"chatcmpl-…","object":"chat.completion.chunk","created":…,"model":"m","choices":[
    {"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]}                    on one line
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rayplane.api.choice import Delta
from rayplane.api.envelope import Envelope
from rayplane.api.logprobs import chat_logprobs
from rayplane.api.protocol.responses import ChatChoice, ChatCompletion, ChatMessage, Usage
from rayplane.api.tokenizer import TextTokenizer


class ChatForm:
    """Writes the answer to one request of `count` choices."""

    def __init__(self, envelope: Envelope, tokenizer: TextTokenizer, count: int):
        self._envelope, self._tokenizer, self._count = envelope, tokenizer, count
        self._head = (
            f'{{"id":{json.dumps(envelope.id)},"object":"chat.completion.chunk",'
            f'"created":{envelope.created},"model":{json.dumps(envelope.model)},"choices":['
        )

    def opening(self) -> list[str]:
        """Chunks before the first text, as JSON: they say who speaks."""
        return [self._chunk(index, '{"role":"assistant","content":""}') for index in range(self._count)]

    def chunk(self, index: int, delta: Delta) -> str:
        """A piece of the stream, as JSON."""
        content = f'{{"content":{json.dumps(delta.text)}}}' if delta.text or not delta.finish else "{}"
        scored = chat_logprobs(delta.tokens, self._tokenizer)
        logprobs = "null" if scored is None else scored.model_dump_json()
        if delta.finish is None:
            return self._chunk(index, content, logprobs)
        return self._chunk(index, content, logprobs, f'{json.dumps(delta.finish)},"stop_reason":{json.dumps(delta.stop_reason)}')

    def last(self, usage: Usage) -> str:
        """The chunk that counts the tokens, as JSON."""
        return f'{self._head}],"usage":{usage.model_dump_json()}}}'

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> ChatCompletion:
        """The answer in one."""
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=delta.text),
                logprobs=chat_logprobs(delta.tokens, self._tokenizer),
                finish_reason=delta.finish,
                stop_reason=delta.stop_reason,
            )
            for index, delta in enumerate(deltas)
        ]
        e = self._envelope
        return ChatCompletion(id=e.id, created=e.created, model=e.model, choices=choices, usage=usage)

    def _chunk(self, index: int, delta: str, logprobs: str = "null", finish: str = "null") -> str:
        return f'{self._head}{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish}}}]}}'
