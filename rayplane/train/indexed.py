"""Megatron-LM's indexed dataset, version 1: tokens in PREFIX.bin, and in PREFIX.idx, little endian, where they belong:

    bytes    what
    9        the magic MMIDIDX, 0, 0
    8        version, 1
    1        element type: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (6 and 7 are floats)
    8, 8     n sequences; d entries of the document index
    4 n      tokens of each sequence, int32
    8 n      first byte of each sequence in the .bin, int64
    8 d      first sequence of each document, int64, and at the end n

(megatron/core/datasets/indexed_dataset.py). The sequences must follow each other in the .bin, as Megatron's own tools write them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rayplane.errors import DataError
from rayplane.train.arrays import Tokens, open_flat

SUFFIX = ".idx"
HEADER = struct.Struct("<9sQBQQ")
MAGIC = b"MMIDIDX\x00\x00"
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
CHUNK = 1 << 20
"""Sequences looked at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What a .idx says, mapped."""

    path: Path
    dtype: np.dtype[Any]
    sizes: npt.NDArray[np.int32]
    pointers: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]

    def tokens(self) -> Tokens:
        """The tokens of the .bin; DataError when it is not there or of another size."""
        path = self.path.with_suffix(".bin")
        if not path.is_file():
            raise DataError(f"{self.path}: {path.name} does not lie beside it; put it there")
        tokens = open_flat(path, self.dtype)
        end = int(self.pointers[-1]) // self.dtype.itemsize + int(self.sizes[-1]) if len(self.sizes) else 0
        if len(tokens) != end:
            raise DataError(f"{path}: holds {len(tokens)} tokens, {self.path.name} speaks of {end}; copy both files again")
        return tokens

    def check(self) -> None:
        """DataError when the sequences do not follow each other, or the documents are not in order. Reads the whole index."""
        end = 0
        for first in range(0, len(self.sizes), CHUNK):
            ends = end + np.cumsum(self.sizes[first : first + CHUNK], dtype=np.int64)
            starts = np.concatenate(([end], ends[:-1])) * self.dtype.itemsize
            wrong = np.flatnonzero(starts != self.pointers[first : first + CHUNK])
            if len(wrong):
                number = first + int(wrong[0])
                raise DataError(
                    f"{self.path}: sequence {number} begins at byte {self.pointers[number]}, not where the one before it ends "
                    f"({starts[wrong[0]]}); write the data again with Megatron's preprocess_data.py or merge_datasets.py"
                )
            end = int(ends[-1])
        if len(self.documents) and not (
            self.documents[0] >= 0 and self.documents[-1] <= len(self.sizes) and bool(np.all(np.diff(self.documents) >= 0))
        ):
            raise DataError(
                f"{self.path}: its documents are not in order, or end behind its {len(self.sizes)} sequences; write it again"
            )

    def write_documents(self, stream: BinaryIO) -> None:
        """The first token of each document, as int64; empty documents are left out."""
        last = -1
        for first in range(0, len(self.documents), CHUNK):
            numbers = self.documents[first : first + CHUNK]
            starts = np.unique(self.pointers[numbers[numbers < len(self.sizes)]]) // self.dtype.itemsize
            starts = starts[starts > last]
            stream.write(starts.astype(np.int64).tobytes())
            last = int(starts[-1]) if len(starts) else last


def open_index(path: Path) -> Index:
    """Maps a .idx; DataError when it is no such thing."""
    remedy = "give a .idx of Megatron's preprocess_data.py, or leave it out of train.data.path"
    size_bytes = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(HEADER.size)
    if len(head) < HEADER.size or not head.startswith(MAGIC):
        raise DataError(f"{path}: does not begin as an indexed dataset (MMIDIDX) does; {remedy}")
    _, version, code, sequences, entries = HEADER.unpack(head)
    if version != 1:
        raise DataError(f"{path}: has version {version} of the format, and only 1 is known; {remedy}")
    if code not in DTYPES:
        raise DataError(f"{path}: has elements of type code {code}, which are no integers; {remedy}")
    need = HEADER.size + 12 * sequences + 8 * entries
    if size_bytes < need:
        raise DataError(
            f"{path}: {size_bytes} bytes, but {sequences} sequences and {entries} document entries take {need}; copy it again"
        )
    arrays, place = [], HEADER.size
    for dtype, count in (("<i4", sequences), ("<i8", sequences), ("<i8", entries)):
        arrays.append(np.memmap(path, dtype, "r", place, (count,)) if count else np.empty(0, dtype))
        place += count * np.dtype(dtype).itemsize
    return Index(path, np.dtype(DTYPES[code]), *arrays)
