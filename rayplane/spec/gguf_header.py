"""The header of a GGUF file, read without the tensors behind it (ggml's GGUF specification, versions 2 and 3).

    magic "GGUF" | version u32 | tensors u64 | fields u64 | field... | tensor...
    field  = key string | type u32 | value          string = length u64 | UTF-8
    tensor = name string | dims u32 | size u64 per dim | type u32 | offset u64          array  = type u32 | length u64 | values

The gguf package reads the same, but keeps numpy views of every token of the vocabulary, which takes seconds.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Format of struct by GGUF's type of value."""

STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata of a GGUF file as plain values (arrays as tuples) and the names of its tensors."""

    fields: dict[str, Any]
    tensor_names: frozenset[str]


class _Cursor:
    """A position in the file that moves as values are read."""

    def __init__(self, data: mmap.mmap):
        self.data, self.at = data, 0

    def numbers(self, form: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{form}") * count
        if size > len(self.data) - self.at:
            raise ValueError("it ends within its header")
        values = struct.unpack_from(f"<{count}{form}", self.data, self.at)
        self.at += size
        return values

    def number(self, form: str) -> Any:
        return self.numbers(form, 1)[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > len(self.data) - self.at:
            raise ValueError("it ends within its header")
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            return self.numbers(NUMBERS[inner], count) if inner in NUMBERS else tuple(self.value(inner) for _ in range(count))
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        raise ValueError(f"it has a value of unknown type {kind}")


def read_gguf_header(file: Path) -> GgufHeader:
    """Metadata and tensor names of a GGUF file. OSError when it cannot be read, ValueError when it is not one."""
    with file.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data)
            cursor.at = 4
            if (version := cursor.number("I")) not in (2, 3):
                raise ValueError(f"its version is {version}; 2 and 3 are supported")
            num_tensors, num_fields = cursor.numbers("Q", 2)
            fields = {cursor.text(): cursor.value(cursor.number("I")) for _ in range(num_fields)}
            return GgufHeader(fields, frozenset(_tensor_name(cursor) for _ in range(num_tensors)))


def _tensor_name(cursor: _Cursor) -> str:
    name = cursor.text()
    cursor.numbers("Q", cursor.number("I"))
    cursor.number("I"), cursor.number("Q")
    return name
