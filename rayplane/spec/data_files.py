"""Where a data path of a job lies, and which files of a folder it means.

python://stdlib    the running interpreter's library, without its tests
a folder           every file in it that matches `include`, by its name or its path inside; hidden folders are left out
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from rayplane.errors import DataError

STDLIB = "python://stdlib"
"""A data path: the running interpreter's own library."""
NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders of the interpreter's library that are left out."""


def data_path(path: str, base: Path = Path()) -> Path:
    """Where a data path of a job lies on this machine; a relative one is relative to `base`."""
    return Path(sysconfig.get_path("stdlib")) if path == STDLIB else base / Path(path).expanduser()


def matching(path: str, root: Path, include: Sequence[str]) -> Iterator[Path]:
    """The files of the folder `root`, which the job calls `path`, that match `include`. DataError where one cannot be looked into."""
    left_out = NOT_LIBRARY if path == STDLIB else frozenset[str]()
    for folder, folders, names in os.walk(root, onerror=_refuse):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in left_out]
        for file in (Path(folder, name) for name in names):
            inner = file.relative_to(root).as_posix()
            if any(fnmatch(file.name, glob) or fnmatch(inner, glob) for glob in include) and file.is_file():
                yield file


def nothing_matches(path: str, include: Sequence[str]) -> str:
    """What to say of a folder without such files."""
    return f"folder {path} has no file that matches include: {list(include)}; widen include"


def _refuse(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error}); make the folder readable or leave it out of train.data.path")
