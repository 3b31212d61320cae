"""The text of a part of a file, one bounded piece at a time, so that parts can be read side by side and memory stays flat.

    *.jsonl            a document per line, in its field `text_field`
    *.parquet          a document per row, in its column `text_field`
    any other file     one document, its bytes as they are

A part begins and ends behind a line end, wherever its border was drawn, so the parts of a file hold it whole and once:

    bytes      0 . . . . . . \\n . . . . | . . . \\n . . . . . \\n          | the border drawn at byte 12
    parts      [ 0                           ) [                  )       the border kept: the first line end from there on

A long document comes in several pieces, cut behind a line end where there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pyarrow
from pyarrow import parquet

from rayplane.errors import DataError
from rayplane.train.parts import ROWS, Part

PARQUET_ROWS = 1024
"""Rows of a .parquet file in memory at a time."""
LINE_END_BYTES = 1 << 18
"""How far behind a border a text file is searched for a line end."""
COUNT_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document comes from, for errors: line `line` from byte `start` on, counted in full only when it is printed."""

    path: Path
    start: int = 0
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{_lines_before(self.path, self.start) + self.line}" if self.line else str(self.path)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of one document; `start` is the first byte's place in it."""

    text: bytes
    where: Place | str
    start: int
    last: bool
    """Whether the document ends here."""


def read_pieces(part: Part, text_field: str, size: int) -> Iterator[Piece]:
    """The documents of a part in pieces of at most `size` bytes; DataError when it cannot be read. Empty documents are left out."""
    try:
        if part.path.suffix == ".jsonl":
            yield from _jsonl(part, text_field, size)
        elif part.path.suffix == ROWS:
            yield from _parquet(part, text_field, size)
        else:
            yield from _text(part, size)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{part.path}: cannot be read ({error}); correct it or leave it out of train.data.path") from error


def _text(part: Part, size: int) -> Iterator[Piece]:
    total = part.path.stat().st_size
    with part.path.open("rb") as stream:
        start, end = (_border(stream, b, LINE_END_BYTES) if b < total else total for b in (part.first, part.after))
        stream.seek(start)
        yield from _pieces(stream, Place(part.path), size, (start, end), end == total)


def _jsonl(part: Part, text_field: str, size: int) -> Iterator[Piece]:
    with part.path.open("rb") as lines:
        start, end = (_border(lines, border, -1) for border in (part.first, part.after))
        lines.seek(start)
        place, number = start, 0
        while place < end and (line := lines.readline()):
            place, number = place + len(line), number + 1
            if line.strip():
                where = Place(part.path, start, number)
                text = _text_of(line, text_field, where)
                yield from _pieces(BytesIO(text), where, size, (0, len(text)), True)


def _border(stream: BinaryIO, drawn: int, limit: int) -> int:
    """Behind the first line end from the byte before `drawn` on; where `limit` bytes have none, before the next UTF-8 character."""
    if drawn == 0:
        return 0
    stream.seek(drawn - 1)
    line = stream.readline(limit)
    if line.endswith(b"\n") or len(line) < limit or limit < 0:
        return drawn - 1 + len(line)
    return drawn + next((i for i in range(4) if line[i + 1] & 0xC0 != 0x80), 0)


def _lines_before(path: Path, end: int) -> int:
    lines = 0
    with path.open("rb") as stream:
        while end > 0 and (block := stream.read(min(end, COUNT_BYTES))):
            lines, end = lines + block.count(b"\n"), end - len(block)
    return lines


def _text_of(line: bytes, text_field: str, where: Place) -> bytes:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not a JSON record ({error}); correct the line") from error
    if not isinstance(record, dict) or text_field not in record:
        fields = ", ".join(map(str, record)) if isinstance(record, dict) else "no fields"
        raise DataError(f"{where}: has no field {text_field!r} (has {fields}); set train.data.text_field")
    return _encoded(record[text_field], text_field, where)


def _parquet(part: Part, text_field: str, size: int) -> Iterator[Piece]:
    with parquet.ParquetFile(part.path) as file:
        names = file.schema_arrow.names
        if text_field not in names:
            raise DataError(f"{part.path}: has no column {text_field!r} (has {', '.join(names)}); set train.data.text_field")
        row = sum(file.metadata.row_group(i).num_rows for i in range(part.first))
        for batch in file.iter_batches(PARQUET_ROWS, list(range(part.first, part.after)), columns=[text_field]):
            for value in batch.column(0):
                row += 1
                where = f"{part.path}: row {row}"
                text = _encoded(value.as_py(), text_field, where)
                yield from _pieces(BytesIO(text), where, size, (0, len(text)), True)


def _encoded(text: object, text_field: str, where: Place | str) -> bytes:
    if not isinstance(text, str):
        raise DataError(f"{where}: {text_field!r} is {type(text).__name__}, not text; set train.data.text_field to a field of text")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {text_field!r} is not valid Unicode ({error.reason}); correct the record") from error


def _pieces(stream: BinaryIO, where: Place | str, size: int, stretch: tuple[int, int], ends: bool) -> Iterator[Piece]:
    """The bytes of `stretch`, from where the stream stands; `ends` says whether the document ends with them."""
    (start, after), held = stretch, b""
    while True:
        held += stream.read(min(size + 1, after - start) - len(held))
        if len(held) <= size:
            if held:
                yield Piece(held, where, start, last=ends)
            return
        cut = _cut(held, size)
        yield Piece(held[:cut], where, start, last=False)
        held, start = held[cut:], start + cut


def _cut(held: bytes, size: int) -> int:
    """Where to end a piece of at most `size` bytes: behind the last line end, else before a UTF-8 character."""
    newline = held.rfind(b"\n", 0, size)
    if newline >= 0:
        return newline + 1
    return next((end for end in range(size, size - 4, -1) if held[end] & 0xC0 != 0x80), size)
