"""Text as its tokens come, never with half a character.

ids      20320         10310 (e4 bd)      254 (a0)
text     "Hi "         ""                 "你"

A tokenizer whose text is the bytes of its tokens, one after the other, is decoded by a table and an incremental UTF-8 decoder. For any
other the last tokens are decoded again with each new one, and what has been added is the new text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

import tokenizers

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_BROKEN = 6
"""Tokens after which a character that is still not whole never will be: UTF-8 has four bytes at most."""


class Detokenizer(Protocol):
    """Takes one text's ids in order."""

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these complete."""

    def finish(self) -> str:
        """What is left of a character that never became whole."""


class ByteDecoder:
    """By a table of bytes; ids beyond it have none."""

    def __init__(self, pieces: Sequence[bytes]):
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these complete."""
        pieces = self._pieces
        return self._decoder.decode(b"".join([pieces[i] for i in ids if i < len(pieces)]))

    def finish(self) -> str:
        """What is left of a character that never became whole."""
        return self._decoder.decode(b"", final=True)


class WindowDecoder:
    """By the tokenizer's own decoder, over the tokens since the last whole character and those just before them."""

    def __init__(self, model: tokenizers.Tokenizer, skip_special: bool):
        self._model, self._skip = model, skip_special
        self._window: list[int] = []
        self._shown = 0
        """Tokens of the window whose text has been given."""

    def push(self, ids: Sequence[int]) -> str:
        """The characters that these complete."""
        out = []
        for token in ids:
            self._window.append(token)
            out.append(self._new(final=False))
        return "".join(out)

    def finish(self) -> str:
        """What is left of a character that never became whole."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        before = self._decode(self._window[: self._shown])
        text = self._decode(self._window)
        broken = text.endswith(REPLACEMENT) and len(self._window) - self._shown < LONGEST_BROKEN
        if len(text) <= len(before) or (broken and not final):
            return ""
        self._window, self._shown = self._window[self._shown :], len(self._window) - self._shown
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._model.decode(ids, skip_special_tokens=self._skip)
