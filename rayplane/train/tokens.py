"""Text tokenised once per host into memory-mapped files beside the checkpoints.

    <folder>/<key>.train.bin  <key>.holdout.bin  <key>.json        the .json comes last: with it the rest is complete
    <folder>/<key>.lock                                            held by the rank that builds; the others wait for it

The key is a hash of everything that the tokens depend on: the section, the files' sizes and times, tokenizer and vocabulary.
Documents are joined with the tokenizer's separator; what is held out goes to its own file. A document longer than 1/256 of all
text is held out piece by piece, so that a share of a single long file can be kept aside.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from rayplane.errors import DataError
from rayplane.spec.job import DataSection
from rayplane.train.arrays import Tokens, check_array, check_ids, open_array, open_flat
from rayplane.train.documents import Piece, read_pieces
from rayplane.train.holdout import Holdout
from rayplane.train.tokenizer import Tokenizer

MAX_PIECE_BYTES = 1 << 18
MIN_PIECE_BYTES = 1 << 12
BATCH_BYTES = 2 << 20
"""Text handed to the tokenizer at a time, which spreads it over the cores."""
SIDES = ("train", "holdout")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is to be tokenised, and how."""

    section: DataSection
    texts: tuple[Path, ...]
    arrays: tuple[Path, ...]
    tokenizer: Tokenizer
    vocab: int

    @property
    def key(self) -> str:
        """A hash of all that the result depends on."""
        fields = self.section.model_dump(include={"text_field", "dtype", "holdout", "seed"})
        stats = [(str(p), s.st_size, s.st_mtime_ns) for p in self.texts + self.arrays for s in (p.stat(),)]
        parts = json.dumps([fields, stats, len(self.texts), self.tokenizer.fingerprint, self.vocab])
        return hashlib.blake2b(parts.encode(), digest_size=12).hexdigest()

    @property
    def piece_bytes(self) -> int:
        """Most bytes of a piece of a document."""
        if not self.section.holdout:
            return MAX_PIECE_BYTES
        total = sum(p.stat().st_size for p in self.texts)
        return min(max(total // 256, MIN_PIECE_BYTES), MAX_PIECE_BYTES)

    @property
    def dtype(self) -> np.dtype[np.uint8] | np.dtype[np.uint16] | np.dtype[np.uint32]:
        """Smallest element type that holds every id below `vocab`."""
        return np.dtype(np.uint8) if self.vocab <= 1 << 8 else np.dtype(np.uint16) if self.vocab <= 1 << 16 else np.dtype(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class TokenFiles:
    """The tokenised text. `fingerprint` is a hash of the tokens: ranks that differ in it would train on different data."""

    train: Tokens
    holdout: Tokens
    fingerprint: str


def tokenised(recipe: Recipe, folder: Path, timeout_s: float) -> TokenFiles:
    """The recipe's token files, built unless they are there; waits up to `timeout_s` for another rank that builds them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / recipe.key
        if (found := _load(recipe, place)) is not None:
            return found
        with FileLock(f"{place}.lock", timeout=timeout_s):
            if _load(recipe, place) is None:
                _build(recipe, place)
        result = _load(recipe, place)
    except Timeout as error:
        raise DataError(f"another rank has been tokenising for {timeout_s:.0f} s; if none is, delete {error.lock_file}") from error
    except OSError as error:
        raise DataError(f"cannot keep the tokenised data in {folder}: {error}; free space there or change checkpoint.dir") from error
    assert result is not None
    return result


def _load(recipe: Recipe, place: Path) -> TokenFiles | None:
    """The complete files at `place`; None when they are absent or cut short."""
    try:
        record = json.loads(Path(f"{place}.json").read_bytes())
        sides = [open_flat(Path(f"{place}.{side}.bin"), recipe.dtype) for side in SIDES]
    except (FileNotFoundError, ValueError, DataError):
        return None
    if [len(s) for s in sides] != [record[side] for side in SIDES]:
        return None
    return TokenFiles(sides[0], sides[1], record["fingerprint"])


def _build(recipe: Recipe, place: Path) -> None:
    for path in recipe.arrays:
        check_array(open_array(path, recipe.section.dtype), recipe.vocab, path)
    aside = {side: Path(f"{place}.{side}.{platform.node()}.tmp") for side in (*SIDES, "record")}
    try:
        counts, digest = dict.fromkeys(SIDES, 0), hashlib.blake2b(digest_size=16)
        with aside["train"].open("wb") as train, aside["holdout"].open("wb") as holdout:
            for side, ids in _tokens(recipe):
                data = ids.astype(recipe.dtype, copy=False).tobytes()
                (train if side == "train" else holdout).write(data)
                digest.update(data)
                counts[side] += len(ids)
        aside["record"].write_text(json.dumps({**counts, "fingerprint": digest.hexdigest()}))
        for side in SIDES:
            aside[side].replace(f"{place}.{side}.bin")
        aside["record"].replace(f"{place}.json")
    finally:
        for path in aside.values():
            path.unlink(missing_ok=True)


def _tokens(recipe: Recipe) -> Iterator[tuple[str, Tokens]]:
    """(side, ids) of every piece in order, and of the separators between documents and where a document changes sides."""
    separator = recipe.tokenizer.separator
    between = np.array([] if separator is None else [separator], dtype=np.int64)
    check_ids(between, recipe.vocab, "train.data.tokenizer: the token between documents")
    holdout = Holdout.of(recipe.section.holdout, recipe.section.seed)
    open_side = ""
    for number, (piece, ids) in enumerate(_encoded(recipe)):
        check_ids(ids, recipe.vocab, piece.where)
        side = "holdout" if holdout.holds(number) else "train"
        if open_side not in ("", side):
            yield open_side, between
        yield side, ids
        if piece.last:
            yield side, between
        open_side = "" if piece.last else side


def _encoded(recipe: Recipe) -> Iterator[tuple[Piece, Tokens]]:
    for batch in _batches(recipe):
        yield from zip(batch, recipe.tokenizer.encode(batch), strict=True)


def _batches(recipe: Recipe) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    batch_bytes = 0
    for path in recipe.texts:
        for piece in read_pieces(path, recipe.section.text_field, recipe.piece_bytes):
            batch.append(piece)
            batch_bytes += len(piece.text)
            if batch_bytes >= BATCH_BYTES:
                yield batch
                batch, batch_bytes = [], 0
    if batch:
        yield batch
