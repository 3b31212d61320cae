"""Completions: how they are answered.

data: {"id":"cmpl-…","object":"text_completion","created":…,"model":"m","choices":[
    {"index":0,"text":" a","logprobs":null,"finish_reason":null}]}                    on one line
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rayplane.api.choice import Delta
from rayplane.api.envelope import Envelope
from rayplane.api.logprobs import Offsets, completion_logprobs
from rayplane.api.protocol.responses import Completion, CompletionChoice, Usage
from rayplane.api.tokenizer import TextTokenizer


class CompletionForm:
    """Writes the answer to one request. `echo`: what stands before the text of each choice."""

    def __init__(self, envelope: Envelope, tokenizer: TextTokenizer, echo: Sequence[str], skip_special: bool):
        self._envelope, self._tokenizer, self._echo = envelope, tokenizer, echo
        self._offsets = [Offsets(tokenizer.decoder(skip_special)) for _ in echo]
        head = (
            f'{{"id":{json.dumps(envelope.id)},"object":"text_completion",'
            f'"created":{envelope.created},"model":{json.dumps(envelope.model)},"choices":['
        )
        self._heads = [f'{head}{{"index":{index},"text":' for index in range(len(echo))]

    def opening(self) -> list[str]:
        """Chunks before the first text, as JSON."""
        return [self.chunk(index, Delta(echo)) for index, echo in enumerate(self._echo) if echo]

    def chunk(self, index: int, delta: Delta) -> str:
        """A piece of the stream, as JSON."""
        if not delta.tokens and delta.finish is None:  # nearly all of them
            return f'{self._heads[index]}{json.dumps(delta.text)},"logprobs":null,"finish_reason":null}}]}}'
        return self._completion([self._choice(index, delta)], None).model_dump_json(exclude={"usage"})

    def last(self, usage: Usage) -> str:
        """The chunk that counts the tokens, as JSON."""
        return self._completion([], usage).model_dump_json()

    def whole(self, deltas: Sequence[Delta], usage: Usage) -> Completion:
        """The answer in one."""
        choices = [self._choice(i, delta, echo) for i, (delta, echo) in enumerate(zip(deltas, self._echo, strict=True))]
        return self._completion(choices, usage)

    def _choice(self, index: int, delta: Delta, echo: str = "") -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=echo + delta.text,
            logprobs=completion_logprobs(delta.tokens, self._tokenizer, self._offsets[index]),
            finish_reason=delta.finish,
            stop_reason=delta.stop_reason,
        )

    def _completion(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        e = self._envelope
        return Completion(id=e.id, created=e.created, model=e.model, choices=choices, usage=usage)
