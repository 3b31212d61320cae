"""The tokens of a source: text tokenised once into memory-mapped shards beside the checkpoints, token arrays checked once.

    <folder>/<key>/00000.bin, .documents, .pieces, .json    a shard (token_shards.py); those that are there are not made again
    <folder>/<key>/array-0.documents                        where documents start in an indexed token array
    <folder>/<key>/manifest.json                            comes last: with it the source is complete
    <folder>/<key>.lock                                     held by the process that builds; the others wait for it

The key is a hash of everything that the tokens depend on: the files' sizes and times, tokenizer and vocabulary. Who makes the shards,
and in which order, is the mapper's affair: this process one by one, or many at once (`rayplane prepare`); the bytes are the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from filelock import FileLock, Timeout

from rayplane.errors import DataError
from rayplane.train.arrays import check_array, check_ids, open_array, open_flat
from rayplane.train.holdout import Holdout
from rayplane.train.indexed import SUFFIX, open_index
from rayplane.train.stream import Ints, Shard, Shards, Stream
from rayplane.train.token_shards import OFFSETS, Build, Built, Recipe, open_shard, read_record

MANIFEST = "manifest.json"


class Mapper(Protocol):
    """Makes shards: calls `build` once for each number, anywhere and in any order, and yields what it returned."""

    def __call__(self, build: Callable[[int], str], numbers: Sequence[int]) -> Iterator[str]:
        """What went wrong with each shard, as it gets done; nothing where it went well."""


def in_turn(build: Callable[[int], str], numbers: Sequence[int]) -> Iterator[str]:
    """Makes the shards here, one by one."""
    return map(build, numbers)


@dataclass(frozen=True, slots=True, eq=False)
class SourceTokens:
    """A source's tokens. `fingerprint` is a hash of its text's tokens: ranks that differ in it would train on different data."""

    text: tuple[Built, ...]
    arrays: tuple[Shard, ...]
    separator: int | None
    fingerprint: str

    @property
    def num_tokens(self) -> int:
        """All of them."""
        return sum(len(built.shard.tokens) for built in self.text) + sum(len(shard.tokens) for shard in self.arrays)

    def divided(self, holdout: Holdout) -> tuple[Stream, Stream]:
        """The text to train on, and that held out."""
        shards = Shards.of([built.shard for built in self.text])
        held = self._held(holdout)
        gaps = np.stack([np.concatenate(([0], held[:, 1])), np.concatenate((held[:, 0], [len(shards)]))], axis=1)
        return Stream.of(shards, gaps, self.separator), Stream.of(shards, held, self.separator)

    def _held(self, holdout: Holdout) -> Ints:
        """[first, after) of what is held out, [n, 2], with neighbours joined."""
        counts = [len(built.pieces) for built in self.text]
        units = holdout.units(sum(counts))
        rows, piece, token = [np.empty((0, 2), dtype=np.int64)], 0, 0
        for built, count in zip(self.text, counts, strict=True):
            a, b = np.searchsorted(units, (piece, piece + count))
            numbers = units[a:b] - piece
            behind = np.minimum(numbers + 1, count - 1)
            after = np.where(numbers + 1 < count, built.pieces[behind], len(built.shard.tokens))
            rows.append(token + np.stack([built.pieces[numbers], after], axis=1))
            piece, token = piece + count, token + len(built.shard.tokens)
        held = np.concatenate(rows)
        held = held[held[:, 1] > held[:, 0]]
        begins = np.flatnonzero(np.concatenate(([True], held[1:, 0] != held[:-1, 1]))[: len(held)])
        ends = np.concatenate((begins[1:], [len(held)]))[: len(begins)] - 1
        return np.stack([held[begins, 0], held[ends, 1]], axis=1)


def tokenised(recipe: Recipe, folder: Path, timeout_s: float, mapper: Mapper = in_turn) -> SourceTokens:
    """The recipe's tokens, built unless they are there; waits up to `timeout_s` for another process that builds them."""
    place = folder / recipe.key
    try:
        place.mkdir(parents=True, exist_ok=True)
        if (found := _load(recipe, place)) is not None:
            return found
        with FileLock(f"{place}.lock", timeout=timeout_s):
            if _load(recipe, place) is None:
                _build(recipe, place, mapper)
        result = _load(recipe, place)
    except Timeout as error:
        raise DataError(f"another rank has been tokenising for {timeout_s:.0f} s; if none is, delete {error.lock_file}") from error
    except OSError as error:
        raise DataError(f"cannot keep the tokenised data in {folder}: {error}; free space there or change checkpoint.dir") from error
    assert result is not None
    return result


def missing(recipe: Recipe, folder: Path) -> list[int]:
    """Numbers of the shards that are still to be made."""
    return [number for number in range(len(recipe.units)) if read_record(folder / recipe.key, number) is None]


def _load(recipe: Recipe, place: Path) -> SourceTokens | None:
    """The complete files at `place`; None when they are absent or cut short."""
    try:
        records = json.loads(Path(place, MANIFEST).read_bytes())["shards"]
        arrays = [_open_tokens(path, recipe, place, number) for number, path in enumerate(recipe.arrays)]
    except (FileNotFoundError, ValueError):
        return None
    text = [open_shard(place, number, recipe.dtype, record) for number, record in enumerate(records)]
    complete = tuple(built for built in text if built is not None)
    if len(complete) < len(text):
        return None
    digest = hashlib.blake2b("".join(built.digest for built in complete).encode(), digest_size=16)
    return SourceTokens(complete, tuple(arrays), recipe.tokenizer.separator, digest.hexdigest())


def _open_tokens(path: Path, recipe: Recipe, place: Path, number: int) -> Shard:
    if path.suffix == SUFFIX:
        return Shard(open_index(path).tokens(), open_flat(Path(place, f"array-{number}.documents"), OFFSETS))
    return Shard(open_array(path, recipe.array_dtype), np.empty(0, dtype=np.int64))


def _build(recipe: Recipe, place: Path, mapper: Mapper) -> None:
    for number, path in enumerate(recipe.arrays):
        _check_tokens(path, recipe, Path(place, f"array-{number}.documents"))
    if recipe.texts and recipe.tokenizer.separator is not None:
        between = np.array([recipe.tokenizer.separator], dtype=np.int64)
        check_ids(between, recipe.vocab, lambda _: "train.data.tokenizer: the token between documents")
    for trouble in mapper(Build(recipe, place), missing(recipe, place.parent)):
        if trouble:
            raise DataError(trouble)
    records = [read_record(place, number) for number in range(len(recipe.units))]
    if None in records:
        raise DataError(f"shard {records.index(None)} is not in {place}; the folder must be the same one on every node")
    for left in place.glob("*.tmp"):  # of builders that were killed
        left.unlink(missing_ok=True)
    aside = Path(place, f"{MANIFEST}.tmp")
    aside.write_text(json.dumps({"shards": records}))
    aside.replace(Path(place, MANIFEST))


def _check_tokens(path: Path, recipe: Recipe, documents: Path) -> None:
    """DataError when a token array cannot be trained on; notes where the documents of an indexed one start."""
    if path.suffix != SUFFIX:
        check_array(open_array(path, recipe.array_dtype), recipe.vocab, path)
        return
    index = open_index(path)
    check_array(index.tokens(), recipe.vocab, path.with_suffix(".bin"))
    index.check()
    with documents.open("wb") as stream:
        index.write_documents(stream)
