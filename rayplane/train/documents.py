"""The files that a job's data section names, source by source.

    folder/            every file in it that matches `include`, sorted; hidden folders are left out
    a file             itself
    data.bin, data     where data.idx lies beside it: Megatron's indexed pair (indexed.py), by its .idx
    python://stdlib    the running interpreter's library, without its tests

Paths without weights are one source, joined in their order; a path with a weight is a source of its own.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from rayplane.errors import DataError
from rayplane.spec.job import DataSection

STDLIB = "python://stdlib"
NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders of the interpreter's library that are left out."""


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
        root = Path(sysconfig.get_path("stdlib")) if name == STDLIB else (base / Path(name).expanduser()).absolute()
        if root.is_dir():
            found = sorted(_walk(root, include, NOT_LIBRARY if name == STDLIB else frozenset()))
            if not found:
                raise DataError(f"train.data.path: folder {name} has no file that matches include: {list(include)}; widen include")
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


def _walk(root: Path, include: Sequence[str], left_out: frozenset[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in left_out]
        for path in (Path(folder, name) for name in names):
            inner = path.relative_to(root).as_posix()
            if any(fnmatch(path.name, glob) or fnmatch(inner, glob) for glob in include) and path.is_file():
                yield path


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error}); make the folder readable or leave it out of train.data.path")
