"""Token arrays on disk, memory mapped and used as they are.

.npy     a one-dimensional array of integers, as numpy.save writes it; carries its element type
.bin     bare elements, of the type that train.data.dtype names
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from rayplane.errors import DataError

Tokens = npt.NDArray[Any]
"""A one-dimensional integer array."""
SUFFIXES = frozenset({".npy", ".bin", ".idx"})
"""Files that hold tokens already; of an indexed pair, the .idx (indexed.py)."""
SCAN_TOKENS = 1 << 22
"""Tokens checked at a time."""
_PARSER = Lock()
"""numpy reads a header with Python's own parser, which CPython 3.11 cannot do in two threads at once (cpython#106905)."""


def open_array(path: Path, dtype: str) -> Tokens:
    """Maps a token array; `dtype` is the element type of a .bin file. DataError when it is no such thing."""
    try:
        return _open_npy(path) if path.suffix == ".npy" else open_flat(path, np.dtype(dtype))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as an array of tokens ({error}); write it again with numpy.save") from error


def open_flat(path: Path, dtype: np.dtype[Any]) -> Tokens:
    """Maps a file of bare elements; empty files too, which cannot be mapped."""
    size_bytes = path.stat().st_size
    if size_bytes % dtype.itemsize:
        raise DataError(f"{path}: {size_bytes} bytes are no whole number of {dtype} elements; set train.data.dtype")
    return np.memmap(path, dtype=dtype, mode="r") if size_bytes else np.empty(0, dtype=dtype)


def _open_npy(path: Path) -> Tokens:
    with _PARSER:
        array: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        form = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(f"{path}: holds {form}, not a one-dimensional array of integers; flatten it and store token ids")
    return array


def check_array(tokens: Tokens, vocab: int, path: Path) -> None:
    """DataError when a token does not lie in [0, vocab). Reads the whole array, unless its element type rules that out."""
    limits = np.iinfo(tokens.dtype)
    if limits.min == 0 and limits.max < vocab:
        return
    for start in range(0, len(tokens), SCAN_TOKENS):
        check_ids(tokens[start : start + SCAN_TOKENS], vocab, partial(_token_of, path, start))


def _token_of(path: Path, start: int, number: int) -> str:
    return f"{path}: token {start + number}"


def check_ids(ids: Tokens, vocab: int, where: Callable[[int], str]) -> None:
    """DataError for the first id that does not lie in [0, vocab); `where` says of its number where it stands."""
    if not len(ids) or (int(ids.max()) < vocab and int(ids.min()) >= 0):
        return
    number = int(np.argmax((ids < 0) | (ids >= vocab)))
    raise DataError(
        f"{where(number)}: id {ids[number]} is outside the model's vocabulary of {vocab}; "
        "use the model's own tokenizer, or set model.vocab"
    )
