"""What the rank that draws tokens has to know beside a step's arrays: who is new, and who has ended.

b"" | msgpack({admissions: [...], ended: [...]})        only sequences that appear for the first time are described
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack
from pydantic import TypeAdapter

from rayplane.serve.plain import plain
from rayplane.serve.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence whose tokens are to be drawn from now on."""

    number: int
    params: SamplingParams
    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    end_tokens: tuple[int, ...]
    """What must not come before `params.min_tokens`."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Of one step."""

    admissions: tuple[Admission, ...] = ()
    ended: tuple[int, ...] = ()
    """Numbers of sequences of which nothing more will be drawn."""


_READER = TypeAdapter(Notes)


def encode(notes: Notes) -> bytes:
    """As bytes, which travel with the step."""
    packed: bytes = msgpack.packb(plain(notes), default=plain)
    return packed


def decode(notes: bytes) -> Notes:
    """What `encode` was given; nothing for no bytes."""
    return _READER.validate_python(msgpack.unpackb(notes), strict=False) if notes else Notes()
