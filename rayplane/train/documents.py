"""The files that a job's data section names, and the text in them, one bounded piece at a time.

    folder/            every file in it that matches `include`, sorted; hidden folders are left out
    *.jsonl            a document per line, in its field `text_field`
    *.parquet          a document per row, in its column `text_field`
    any other file     one document, its bytes as they are
    python://stdlib    the running interpreter's library, without its tests

A long document comes in several pieces, cut behind a line end where there is one, so memory stays flat.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pyarrow
from pyarrow import parquet

from rayplane.errors import DataError
from rayplane.spec.job import DataSection

STDLIB = "python://stdlib"
NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders of the interpreter's library that are left out."""
PARQUET_ROWS = 1024
"""Rows of a .parquet file in memory at a time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of one document. `where` names it for errors; `start` is the first byte's place in it."""

    text: bytes
    where: str
    start: int
    last: bool
    """Whether the document ends here."""


def find_files(section: DataSection, base: Path) -> tuple[Path, ...]:
    """Every file to read, each once, in the order of the section's paths; relative ones are relative to `base`."""
    files: list[Path] = []
    for name in section.path:
        root = Path(sysconfig.get_path("stdlib")) if name == STDLIB else base / Path(name).expanduser()
        if root.is_dir():
            found = sorted(_walk(root, section.include, NOT_LIBRARY if name == STDLIB else frozenset()))
            if not found:
                raise DataError(f"train.data.path: folder {name} has no file that matches include: {section.include}; widen include")
            files += found
        elif root.is_file():
            files.append(root)
        else:
            raise DataError(f"train.data.path: {name} is neither a file nor a folder (looked at {root}); correct the path")
    return tuple(dict.fromkeys(files))


def _walk(root: Path, include: list[str], left_out: frozenset[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in left_out]
        for path in (Path(folder, name) for name in names):
            inner = path.relative_to(root).as_posix()
            if any(fnmatch(path.name, glob) or fnmatch(inner, glob) for glob in include) and path.is_file():
                yield path


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error}); make the folder readable or leave it out of train.data.path")


def read_pieces(path: Path, text_field: str, size: int) -> Iterator[Piece]:
    """The documents of a file in pieces of at most `size` bytes; DataError when it cannot be read. Empty documents are left out."""
    try:
        if path.suffix == ".jsonl":
            yield from _jsonl(path, text_field, size)
        elif path.suffix == ".parquet":
            yield from _parquet(path, text_field, size)
        else:
            with path.open("rb") as stream:
                yield from _pieces(stream, str(path), size)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); correct it or leave it out of train.data.path") from error


def _jsonl(path: Path, text_field: str, size: int) -> Iterator[Piece]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield from _pieces(BytesIO(_text_of(line, text_field, where)), where, size)


def _text_of(line: bytes, text_field: str, where: str) -> bytes:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: is not a JSON record ({error}); correct the line") from error
    if not isinstance(record, dict) or text_field not in record:
        fields = ", ".join(map(str, record)) if isinstance(record, dict) else "no fields"
        raise DataError(f"{where}: has no field {text_field!r} (has {fields}); set train.data.text_field")
    return _encoded(record[text_field], text_field, where)


def _parquet(path: Path, text_field: str, size: int) -> Iterator[Piece]:
    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if text_field not in names:
            raise DataError(f"{path}: has no column {text_field!r} (has {', '.join(names)}); set train.data.text_field")
        row = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=[text_field]):
            for text in batch.column(0):
                row += 1
                where = f"{path}: row {row}"
                yield from _pieces(BytesIO(_encoded(text.as_py(), text_field, where)), where, size)


def _encoded(text: object, text_field: str, where: str) -> bytes:
    if not isinstance(text, str):
        raise DataError(f"{where}: {text_field!r} is {type(text).__name__}, not text; set train.data.text_field to a field of text")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {text_field!r} is not valid Unicode ({error.reason}); correct the record") from error


def _pieces(stream: BinaryIO, where: str, size: int) -> Iterator[Piece]:
    held, start = b"", 0
    while True:
        held += stream.read(size + 1 - len(held))
        if len(held) <= size:
            if held:
                yield Piece(held, where, start, last=True)
            return
        end = _cut(held, size)
        yield Piece(held[:end], where, start, last=False)
        held, start = held[end:], start + end


def _cut(held: bytes, size: int) -> int:
    """Where to end a piece of at most `size` bytes: behind the last line end, else before a UTF-8 character."""
    newline = held.rfind(b"\n", 0, size)
    if newline >= 0:
        return newline + 1
    return next((end for end in range(size, size - 4, -1) if held[end] & 0xC0 != 0x80), size)
