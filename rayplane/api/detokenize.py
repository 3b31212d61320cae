"""Text as its tokens come, never with half a character.

ids      20320         10310 (e4 bd)      254 (a0)
text     "Hi "         ""                 "你"

A tokenizer whose text is the bytes of its tokens, one after the other, is decoded by a table and an incremental UTF-8 decoder. For any
other the last tokens are decoded again with each new one (rayplane.serve.detokenise).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


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
