"""What the C++ side reads: a program is an array of OpRecords over fixed buffers, and a StepRecord says what it is run on.

op.p    pointers        op.n    sizes and strides, in elements        op.f    fractions         (source/records.hpp)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import torch

Tensor = torch.Tensor


class Kind(IntEnum):
    """Ops that C++ knows."""

    NORM = 0
    LINEAR = 1
    EMBED = 2
    ROTATE = 3
    ATTEND = 4
    ACT = 5
    SUM = 6
    OFFER = 7
    MERGE = 8


FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}
"""Number formats by their C++ number."""


class Stripes(Protocol):
    """Of a step over cp (`rayplane.model.paged.Stripes`): Q queries of all ranks."""

    @property
    def keys(self) -> Tensor: ...  # int32 [2, Q]
    @property
    def first(self) -> int: ...


class Step(Protocol):
    """One step of serving (`rayplane.model.paged.PagedStep`): T tokens of N sequences, R rows of logits."""

    @property
    def tokens(self) -> Tensor: ...  # int64 [T]
    @property
    def positions(self) -> Tensor: ...  # int64 [T]
    @property
    def slots(self) -> Tensor: ...  # int64 [T]
    @property
    def starts(self) -> Tensor: ...  # int32 [N + 1]
    @property
    def lengths(self) -> Tensor: ...  # int32 [N]
    @property
    def tables(self) -> Tensor: ...  # int32 [N, W]
    @property
    def rows(self) -> Tensor: ...  # int64 [R]
    @property
    def stripes(self) -> Stripes | None: ...


class OpRecord(ctypes.Structure):
    """One op of a program."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("p", ctypes.c_void_p * 8),
        ("n", ctypes.c_int64 * 12),
        ("f", ctypes.c_float * 2),
    )


class StepRecord(ctypes.Structure):
    """One step."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("tokens", "sequences", "width", "rows", "queries", "first")),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "slots", "starts", "lengths", "tables", "wanted", "keys")),
    )


def record(
    kind: Kind, dtype: torch.dtype, tensors: Sequence[Tensor | None], numbers: Sequence[int], fractions: Sequence[float] = ()
) -> OpRecord:
    """An op over these tensors, which must outlive it."""
    out = OpRecord(kind, FORMATS[dtype])
    for i, tensor in enumerate(tensors):
        out.p[i] = None if tensor is None else tensor.data_ptr()
    for i, number in enumerate(numbers):
        out.n[i] = number
    for i, fraction in enumerate(fractions):
        out.f[i] = fraction
    return out


def step_record(step: Step) -> StepRecord:
    """A step for C++; its tensors must be contiguous, of the types of `Step`, and outlive it."""
    tensors = (step.tokens, step.positions, step.slots, step.starts, step.lengths, step.tables, step.rows)
    assert all(t.is_contiguous() for t in tensors), "a step's tensors are contiguous"
    keys, first = (None, 0) if step.stripes is None else (step.stripes.keys, step.stripes.first)
    sizes = (step.tokens.shape[0], step.lengths.shape[0], step.tables.shape[1], step.rows.shape[0])
    queries, seen = (sizes[0], None) if keys is None else (keys.shape[1], keys.data_ptr())
    return StepRecord(*sizes, queries, first, *(t.data_ptr() for t in tensors), seen)
