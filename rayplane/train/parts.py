"""Work that can be done side by side: the files of a source, cut into units of about equal size, a function of the files alone.

    files     a.py  b.py  c.py      big.jsonl .................................  d.parquet [row groups] ........
    units     [ 0             ]     [ 1         ][ 2         ][ 3             ]  [ 4          ][ 5             ]

Small files share a unit, large ones are cut: text and .jsonl by bytes (pieces.py moves borders to line ends), .parquet by row groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow
from pyarrow import parquet

from rayplane.errors import DataError

ROWS = ".parquet"
MIN_UNIT_BYTES = 1 << 20
MAX_UNITS = 1024
"""About so many at most: each is a few files that every rank maps."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a file: bytes, or row groups of a .parquet file, from `first` to before `after`."""

    path: Path
    first: int
    after: int


def unit_bytes(total_bytes: int) -> int:
    """About how much of so much data is a unit."""
    return max(total_bytes // MAX_UNITS, MIN_UNIT_BYTES)


def cut_units(files: Sequence[Path], size: int) -> list[tuple[Part, ...]]:
    """Units of about `size` bytes of the files, in order; DataError when a file cannot be read."""
    units: list[tuple[Part, ...]] = []
    unit: list[Part] = []
    held = 0
    for part, part_bytes in (cut for file in files for cut in _cut_file(file, size)):
        if unit and held + part_bytes > size:
            units.append(tuple(unit))
            unit, held = [], 0
        unit.append(part)
        held += part_bytes
    return [*units, tuple(unit)] if unit else units


def _cut_file(path: Path, size: int) -> Iterator[tuple[Part, int]]:
    """(part, about its bytes)."""
    total = path.stat().st_size
    if path.suffix == ROWS:
        yield from _cut_rows(path, total, size)
        return
    for first in range(0, total, size):
        after = min(first + size, total)
        yield Part(path, first, after), after - first


def _cut_rows(path: Path, total: int, size: int) -> Iterator[tuple[Part, int]]:
    try:
        with parquet.ParquetFile(path) as file:
            weights = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); correct it or leave it out of train.data.path") from error
    first, held, scale = 0, 0.0, total / max(sum(weights), 1)
    for group, weight in enumerate(weights):
        if group > first and held + weight * scale > size:
            yield Part(path, first, group), int(held)
            first, held = group, 0.0
        held += weight * scale
    if first < len(weights):
        yield Part(path, first, len(weights)), int(held)
