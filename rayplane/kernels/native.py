"""The C++ library, loaded: runs programs, packs weights. None where it cannot be built; then torch does all, with one warning.

native = load()
native.run(records, step, threads)          native.bf16        whether it multiplies bf16 (AVX512-BF16, AMX)
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rayplane.kernels.build import BuildError, built
from rayplane.kernels.records import OpRecord, StepRecord

Tensor = torch.Tensor
BF16_PRODUCTS, THREADS = 1, 4


class Native:
    """The functions of the library."""

    def __init__(self, path: Path):
        self._library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._run = self._function("rayplane_run", None, pointer, number, pointer, number, pointer)
        self._pack = self._function("rayplane_pack", None, pointer, number, number, pointer, number, number, pointer)
        self._enter = self._function("rayplane_enter", None, pointer, number, number)
        self._meet = self._function("rayplane_meet", number, pointer, number, number, ctypes.c_double)
        self._abilities: int = self._function("rayplane_abilities", number)()

    @property
    def bf16(self) -> bool:
        """Whether products of bf16 are made for this CPU."""
        return bool(self._abilities & BF16_PRODUCTS)

    def run(self, records: Any, step: StepRecord, threads: int, seconds: Any = None) -> None:
        """Run an array of records on a step; adds the seconds of each op to `seconds`, an array of doubles."""
        threads = threads if self._abilities & THREADS else 1
        self._run(ctypes.addressof(records), len(records), ctypes.addressof(step), threads, seconds and ctypes.addressof(seconds))

    def pack(self, weight: Tensor, order: Tensor, padded: int) -> Tensor:
        """Rows `order` (int64; -1: zeros) of a bf16 weight [N, K], packed for LINEAR with `padded` columns."""
        assert weight.dtype == torch.bfloat16 and weight.stride(1) == 1
        out = torch.empty(order.numel() * padded, dtype=torch.bfloat16)
        self._pack(weight.data_ptr(), weight.stride(0), weight.shape[1], order.data_ptr(), order.numel(), padded, out.data_ptr())
        return out

    def enter(self, header: int, rank: int, pid: int) -> None:
        """Tell the ranks that share the memory at `header` which process this rank is."""
        self._enter(header, rank, pid)

    def meet(self, header: int, rank: int, ranks: int, timeout_s: float) -> int:
        """Wait until all ranks came; 0, or which one did not (source/shared.hpp)."""
        return int(self._meet(header, rank, ranks, timeout_s))

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments
        return function


def load(cache: Path | None = None) -> Native | None:
    """The library, built now where that was not done before; None with a warning where it cannot be."""
    try:
        return Native(built(cache))
    except (BuildError, OSError) as error:
        warnings.warn(f"serving on torch alone, which is slower: {error}", RuntimeWarning, stacklevel=2)
        return None


def records_of(ops: Sequence[OpRecord]) -> Any:
    """An array of records, as `Native.run` takes it."""
    return (OpRecord * len(ops))(*ops)
