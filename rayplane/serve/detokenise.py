"""Text out of tokens as they come, never half a character.

tokens   … "Hello" " w" "\\xe4" "\\xb8" "\\xad" "!"
delta      "Hello" " w"   ""     ""    "中"   "!"

A tokenizer decodes only whole lists, and what a token's text is depends on the tokens before it (a space that only the first word of a
text loses, bytes that make a character together). So a short window of the last tokens is decoded again each time, and what it has
grown by is new:

    window   context, whose text has been given out | tokens since
    text     decode(window), of which `_shown` characters have been given out; U+FFFD at its end may still become a character

The window moves on where the text ends with a whole character, and where it does not for long, so a token costs the same however long
the text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

UNKNOWN = "\ufffd"
"""What decoders write for bytes that are no character, or not yet."""
WINDOW = 8
"""Tokens of a window before it moves on."""
LONGEST = 32
"""Tokens of a window that has to move on even within a run of unfinished characters."""
CHARACTER = 4
"""Most tokens that make one character: its bytes in UTF-8."""


class Decoder(Protocol):
    """Text of token ids, without the special ones."""

    def __call__(self, ids: Sequence[int], /) -> str:
        """The text of all of them together."""


class Detokeniser:
    """Text of one sequence. `context`: the last tokens before its first one, where its text follows theirs."""

    def __init__(self, decode: Decoder, context: Sequence[int] = ()):
        self._decode = decode
        self._window = list(context[-LONGEST // 2 :])
        self._shown = len(decode(self._window).rstrip(UNKNOWN)) if self._window else 0
        self._mark = 0
        """Where the window can begin: tokens from here on have given out text, from a whole character on."""

    def push(self, tokens: Sequence[int]) -> str:
        """The characters that these complete."""
        if not tokens:
            return ""
        self._window += tokens
        text = self._decode(self._window)
        whole = len(text.rstrip(UNKNOWN))
        delta = text[self._shown : whole]
        if delta:
            self._shown = whole
        if whole < len(text):
            return delta + self._cut(text) if len(self._window) >= LONGEST else delta
        if delta:
            self._move_on()
        elif text or len(self._window) >= LONGEST:
            # They have no text at all, such as special tokens.
            del self._window[-len(tokens) :]
        return delta

    def finish(self) -> str:
        """What was held back of a character that never became whole."""
        text = self._decode(self._window) if self._window else ""
        delta, self._shown = text[self._shown :], len(text)
        return delta

    def _move_on(self) -> None:
        """The text ends with a whole character: the next window may begin here, and this one where it last could."""
        if len(self._window) < WINDOW:
            return
        if self._mark:
            del self._window[: self._mark]
            self._shown = len(self._decode(self._window))
        self._mark = len(self._window)

    def _cut(self, text: str) -> str:
        """Shorten a window that has not ended with a whole character for long; what will never become one is given out."""
        held = len(text) - self._shown
        tail = self._window[-LONGEST // 2 :]
        ending = self._decode(tail)
        common = ending.lstrip(UNKNOWN)
        if len(common) > held and text.endswith(common):
            self._window, self._shown, self._mark = tail, len(ending) - held, 0
            return ""
        if held <= CHARACTER and len(self._window) < 2 * LONGEST:
            return ""
        # Bytes that are no text: only the last few can still be the beginning of a character.
        self._window, self._mark = self._window[-CHARACTER:], 0
        ending = self._decode(self._window)
        held = min(1, len(ending))
        delta = text[self._shown : len(text) - held]
        self._shown = len(ending) - held
        return delta
