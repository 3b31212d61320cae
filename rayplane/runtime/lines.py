r"""Bytes from a rank become messages, however the stream cuts them.

b'{"type":"st' + b'ep"}\n{"type":"done"}\n'  ──▶  {"type": "step"}, {"type": "done"}
"""

from __future__ import annotations

import json

from rayplane.runtime.group import Message

MAX_LINE_BYTES = 16 * 2**20


class StreamError(Exception):
    """What came is no message; the stream cannot be trusted from here on."""


class LineBuffer:
    """Collects bytes until a line is whole."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Raises StreamError on a line that is no message or longer than MAX_LINE_BYTES."""
        *whole, rest = data.split(b"\n")
        out = []
        for end in whole:
            out.append(_message(b"".join([*self._pieces, end])))
            self._pieces, self._held = [], 0
        self._pieces.append(rest)
        self._held += len(rest)
        if self._held > MAX_LINE_BYTES:
            raise StreamError(f"a message longer than {MAX_LINE_BYTES} bytes")
        return out


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise StreamError(f"no message: {line[:80]!r}")
    return message
