"""Logprobs in the two shapes of OpenAI's API.

completions   {"tokens": [" a"], "token_logprobs": [-0.1], "top_logprobs": [{" a": -0.1}], "text_offset": [0]}
chat          {"content": [{"token": " a", "logprob": -0.1, "bytes": [32, 97], "top_logprobs": […]}]}

A token that is no whole character is written as `bytes:\\xe4\\xbd`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayplane.api.choice import ScoredToken
from rayplane.api.detokenize import Detokenizer
from rayplane.api.protocol.responses import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from rayplane.api.tokenizer import TextTokenizer

LEAST = -9999.0
"""Instead of minus infinity, which JSON has not."""


def shown(piece: bytes) -> str:
    """A token as text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class Offsets:
    """Where the tokens of one text begin, in characters."""

    def __init__(self, decoder: Detokenizer):
        self._decoder, self._length = decoder, 0

    def take(self, tokens: Sequence[ScoredToken]) -> list[int]:
        """Of the next tokens."""
        out = []
        for token in tokens:
            out.append(self._length)
            self._length += len(self._decoder.push((token.id,)))
        return out


def completion_logprobs(tokens: Sequence[ScoredToken], tokenizer: TextTokenizer, offsets: Offsets) -> CompletionLogprobs | None:
    """Of some tokens; None of none."""
    if not tokens:
        return None
    return CompletionLogprobs(
        tokens=[shown(tokenizer.piece(token.id)) for token in tokens],
        token_logprobs=[max(LEAST, token.scored.logprob) for token in tokens],
        top_logprobs=[{shown(tokenizer.piece(i)): max(LEAST, value) for i, value in token.scored.top} for token in tokens],
        text_offset=offsets.take(tokens),
    )


def chat_logprobs(tokens: Sequence[ScoredToken], tokenizer: TextTokenizer) -> ChatLogprobs | None:
    """Of some tokens; None of none."""
    if not tokens:
        return None
    content = [
        ChatLogprob(
            **_entry(token.id, token.scored.logprob, tokenizer).model_dump(),
            top_logprobs=[_entry(i, value, tokenizer) for i, value in token.scored.top],
        )
        for token in tokens
    ]
    return ChatLogprobs(content=content)


def _entry(token: int, logprob: float, tokenizer: TextTokenizer) -> TopLogprob:
    piece = tokenizer.piece(token)
    return TopLogprob(token=shown(piece), logprob=max(LEAST, logprob), bytes=list(piece))
