"""Frames to bytes and back.

    b"\\x00\\x00\\x00\\x0b" + msgpack([kind, {field: value, …}])         length, big-endian, of what follows

Whatever is not exactly a frame raises FrameError, after which the stream cannot be trusted: its reader closes the connection.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields

import msgpack
from pydantic import TypeAdapter, ValidationError

from rayplane.errors import RayplaneError
from rayplane.serve.plain import plain
from rayplane.serve.wire import Cancel, Frame, Hello, Leave, Pulse, Refused, Submit, Tokens, Welcome

MAX_FRAME_BYTES = 16 * 2**20
"""A prompt of three million tokens, or the tokens of a step for some hundred thousand requests."""
LENGTH = struct.Struct(">I")

KINDS: tuple[type[Frame], ...] = (Hello, Welcome, Submit, Cancel, Leave, Tokens, Refused, Pulse)
"""A frame's kind is its place here; new ones go to the end."""
TO_ENGINE: frozenset[type[Frame]] = frozenset({Hello, Submit, Cancel, Leave})
TO_INGRESS: frozenset[type[Frame]] = frozenset({Welcome, Leave, Tokens, Refused, Pulse})

NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
READERS: tuple[TypeAdapter[Frame], ...] = tuple(TypeAdapter(kind) for kind in KINDS)


class FrameError(Exception):
    """What came is no frame."""


def encode(frame: Frame) -> bytes:
    """A frame as bytes, its length before it. FrameError where it would be larger than any reader takes."""
    body: bytes = msgpack.packb([NUMBERS[type(frame)], plain(frame)], default=plain)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes; the most is {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


class FrameReader:
    """Collects bytes until frames are whole, however the stream cuts them."""

    def __init__(self, kinds: frozenset[type[Frame]]):
        """`kinds`: what the other side may send."""
        self._kinds = kinds
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises FrameError."""
        self._held += data
        return [self._read(body) for body in self._bodies()]

    def _bodies(self) -> Iterator[bytes]:
        start = 0
        while len(self._held) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._held, start)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes; the most is {MAX_FRAME_BYTES}")
            end = start + LENGTH.size + length
            if len(self._held) < end:
                break
            yield bytes(self._held[start + LENGTH.size : end])
            start = end
        del self._held[:start]

    def _read(self, body: bytes) -> Frame:
        try:
            match msgpack.unpackb(body, use_list=False):
                case (int(number), dict(values)) if 0 <= number < len(KINDS):
                    kind = KINDS[number]
                case _:
                    raise FrameError("not a kind with its fields")
            if kind not in self._kinds:
                raise FrameError(f"a {kind.__name__} is nothing that this side takes")
            if extra := values.keys() - {f.name for f in fields(kind)}:
                raise FrameError(f"{kind.__name__} has no field {sorted(map(str, extra))[0]!r}")
            return READERS[number].validate_python(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise FrameError(f"{kind.__name__}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException, RayplaneError) as error:
            raise FrameError(f"not readable: {error}") from None
