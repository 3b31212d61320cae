"""The files that a job's data section names, source by source.

    folder/            every file in it that matches `include`, sorted; hidden folders are left out
    a file             itself
    data.bin, data     where data.idx lies beside it: Megatron's indexed pair (indexed.py), by its .idx
    python://stdlib    the running interpreter's library, without its tests (spec/data_files.py)

Paths without weights are one source, joined in their order; a path with a weight is a source of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rayplane.errors import DataError
from rayplane.spec.data_files import data_path, matching, nothing_matches
from rayplane.spec.job import DataSection


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files of one source, each once. `name` is for errors."""

    name: str
    weight: float
    files: tuple[Path, ...]


def find_sources(section: DataSection, base: Path) -> tuple[SourceFiles, ...]:
    """The sources of a data section; relative paths are relative to `base`. DataError when one has no file."""
    names = [source.path for source in section.path]
    weights = [source.weight for source in section.path if source.weight is not None]
    if not weights:
        return (SourceFiles(", ".join(names), 1.0, _find(names, section.include, base)),)
    if len(weights) < len(names):
        raise DataError("train.data.path: some paths have a weight and some have none; give every path a weight, or none")
    return tuple(SourceFiles(n, w, _find([n], section.include, base)) for n, w in zip(names, weights, strict=True))


def _find(names: Sequence[str], include: Sequence[str], base: Path) -> tuple[Path, ...]:
    files: list[Path] = []
    for name in names:
        root = data_path(name, base).absolute()
        if root.is_dir():
            found = sorted(matching(name, root, include))
            if not found:
                raise DataError(f"train.data.path: {nothing_matches(name, include)}")
            files += map(_indexed, found)
        elif root.is_file() or _indexed(root).is_file():
            files.append(_indexed(root))
        else:
            raise DataError(f"train.data.path: {name} is neither a file nor a folder (looked at {root}); correct the path")
    return tuple(dict.fromkeys(files))


def _indexed(path: Path) -> Path:
    """The .idx that belongs to a .bin or to a prefix of both; other paths as they are."""
    if path.suffix == ".bin":
        index = path.with_suffix(".idx")
        return index if index.is_file() else path
    index = path.with_name(f"{path.name}.idx")
    return index if not path.exists() and index.is_file() else path
