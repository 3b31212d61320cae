"""A shard: the tokens of one unit of a source's text, made by whichever process comes first, always the same bytes.

    00007.bin          token ids of the documents, separators behind them, in the smallest element type that holds the vocabulary
    00007.documents    int64, sorted: where a document starts; one that began in the shard before is not among them
    00007.pieces       int64, sorted: where a piece starts, the unit of what is held out
    00007.json         bytes of the three and a hash of the tokens; it comes last: with it the rest is complete

Documents longer than 1/256 of the source come in several pieces, so that a share of a single long file can be kept aside. What is
held out, and the order of the samples, are no part of a shard: another seed or share takes the same shards.
"""

from __future__ import annotations

import hashlib
import json
import platform
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rayplane.errors import DataError, RayplaneError
from rayplane.train.arrays import Tokens, check_ids, open_flat
from rayplane.train.parts import Part, cut_units, unit_bytes
from rayplane.train.pieces import Piece, read_pieces
from rayplane.train.stream import Shard
from rayplane.train.tokenizer import Tokenizer

MAX_PIECE_BYTES = 1 << 18
MIN_PIECE_BYTES = 1 << 12
BATCH_BYTES = 2 << 20
"""Text handed to the tokenizer at a time, which spreads it over the cores."""
OFFSETS = np.dtype("<i8")
KINDS = ("bin", "documents", "pieces")


@dataclass(frozen=True)
class Recipe:
    """What is to be tokenised, and how."""

    texts: tuple[Path, ...]
    arrays: tuple[Path, ...]
    tokenizer: Tokenizer
    vocab: int
    text_field: str
    array_dtype: str

    @cached_property
    def key(self) -> str:
        """A hash of all that the result depends on."""
        files = [*self.texts, *self.arrays, *(p.with_suffix(".bin") for p in self.arrays if p.suffix == ".idx")]
        stats = [(str(p), s.st_size, s.st_mtime_ns) for p in files if p.exists() for s in (p.stat(),)]
        fields = [self.text_field, self.array_dtype, self.tokenizer.fingerprint, self.vocab, self.unit_bytes, self.piece_bytes]
        return hashlib.blake2b(json.dumps([fields, stats, len(self.texts)]).encode(), digest_size=12).hexdigest()

    @cached_property
    def units(self) -> list[tuple[Part, ...]]:
        """The text, cut into what becomes a shard each."""
        return cut_units(self.texts, self.unit_bytes)

    @cached_property
    def num_bytes(self) -> int:
        """All text, as it lies on disk."""
        return sum(p.stat().st_size for p in self.texts)

    @property
    def unit_bytes(self) -> int:
        """About so much text makes a shard."""
        return unit_bytes(self.num_bytes)

    @property
    def piece_bytes(self) -> int:
        """Most bytes of a piece of a document."""
        return min(max(self.num_bytes // 256, MIN_PIECE_BYTES), MAX_PIECE_BYTES)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Smallest element type that holds every id below `vocab`."""
        return np.dtype("u1" if self.vocab <= 1 << 8 else "<u2" if self.vocab <= 1 << 16 else "<u4")


@dataclass(frozen=True, slots=True)
class Build:
    """Makes shards of a recipe in a folder. It can be sent to another process."""

    recipe: Recipe
    folder: Path

    def __call__(self, number: int) -> str:
        """Make a shard; what is wrong, in words, or nothing."""
        try:
            build_shard(self.recipe, self.folder, number)
        except OSError as error:
            return f"cannot keep the tokenised data in {self.folder}: {error}; free space there or change checkpoint.dir"
        except RayplaneError as error:
            return str(error)
        return ""


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A shard with its pieces, and a hash of its tokens."""

    shard: Shard
    pieces: npt.NDArray[np.int64]
    digest: str


def read_record(folder: Path, number: int) -> dict[str, Any] | None:
    """What the .json of a complete shard says; None when the shard is absent or cut short."""
    try:
        record: dict[str, Any] = json.loads(shard_file(folder, number, "json").read_bytes())
        sizes = [shard_file(folder, number, kind).stat().st_size for kind in KINDS]
    except (FileNotFoundError, ValueError):
        return None
    return record if sizes == record["bytes"] else None


def open_shard(folder: Path, number: int, dtype: np.dtype[Any], record: dict[str, Any]) -> Built | None:
    """Maps a shard; None when it is not as long as its record says."""
    try:
        of = (dtype, OFFSETS, OFFSETS)
        tokens, documents, pieces = (open_flat(shard_file(folder, number, k), d) for k, d in zip(KINDS, of, strict=True))
    except (FileNotFoundError, DataError):
        return None
    if [a.nbytes for a in (tokens, documents, pieces)] != record["bytes"]:
        return None
    return Built(Shard(tokens, documents), pieces, record["digest"])


def shard_file(folder: Path, number: int, kind: str) -> Path:
    """Where a file of a shard lies."""
    return folder / f"{number:05}.{kind}"


def build_shard(recipe: Recipe, folder: Path, number: int) -> None:
    """Tokenise a unit. Nothing of it is seen under its name before it is complete."""
    aside = {kind: shard_file(folder, number, f"{kind}.{platform.node()}.tmp") for kind in (*KINDS, "json")}
    documents, pieces = array("q"), array("q")
    try:
        with aside["bin"].open("wb") as out:
            digest = _write_tokens(recipe, recipe.units[number], out, (documents, pieces))
        for kind, offsets in (("documents", documents), ("pieces", pieces)):
            aside[kind].write_bytes(np.array(offsets, dtype=OFFSETS).tobytes())
        sizes = [aside[kind].stat().st_size for kind in KINDS]
        aside["json"].write_text(json.dumps({"bytes": sizes, "digest": digest}))
        for kind, path in aside.items():
            path.replace(shard_file(folder, number, kind))
    finally:
        for path in aside.values():
            path.unlink(missing_ok=True)


def _write_tokens(recipe: Recipe, unit: tuple[Part, ...], out: BinaryIO, offsets: tuple[array[int], array[int]]) -> str:
    """Write a unit's tokens, and note where documents and pieces start; a hash of what was written."""
    (documents, pieces), count, digest = offsets, 0, hashlib.blake2b(digest_size=16)
    for piece, ids in _encoded(recipe, unit):
        check_ids(ids, recipe.vocab, partial(_token_of, piece))
        if piece.start == 0 and not (documents and documents[-1] == count):
            documents.append(count)
        pieces.append(count)
        closing = [recipe.tokenizer.separator] if piece.last and recipe.tokenizer.separator is not None else []
        data = ids.astype(recipe.dtype, copy=False).tobytes() + np.array(closing, dtype=recipe.dtype).tobytes()
        out.write(data)
        digest.update(data)
        count += len(ids) + len(closing)
    if documents and documents[-1] == count:
        documents.pop()
    return digest.hexdigest()


def _token_of(piece: Piece, number: int) -> str:
    return f"{piece.where}: token {number}" + (f" from byte {piece.start} on" if piece.start else "")


def _encoded(recipe: Recipe, unit: tuple[Part, ...]) -> Iterator[tuple[Piece, Tokens]]:
    for batch in _batches(recipe, unit):
        yield from zip(batch, recipe.tokenizer.encode(batch), strict=True)


def _batches(recipe: Recipe, unit: tuple[Part, ...]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    batch_bytes = 0
    for part in unit:
        for piece in read_pieces(part, recipe.text_field, recipe.piece_bytes):
            batch.append(piece)
            batch_bytes += len(piece.text)
            if batch_bytes >= BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
    if batch:
        yield batch
