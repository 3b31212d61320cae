"""A program: the ops of a chunk of the model in order. C++ runs those it has in one call, torch the others in their places.

[norm  linear  rotate  attend  …]  ▶  one call            [norm] [linear by oneDNN] [rotate attend] …  ▶  a call for each run
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from rayplane.kernels.native import Native, records_of
from rayplane.kernels.op import Op
from rayplane.kernels.records import Step, StepRecord, step_record
from rayplane.kernels.shared import Memory

Part = Callable[[Step, StepRecord | None], None]


class Program:
    """Ops in order, run as often as wanted. With `native` None, torch runs all."""

    def __init__(self, ops: Sequence[Op], native: Native | None, threads: int, memories: Sequence[Memory] = (), profile: bool = False):
        """`threads` for C++; torch's are torch's own setting. `memories`: those in which the ops meet other ranks.

        `profile`: keep the seconds that each op takes.
        """
        self.ops = tuple(ops)
        self._native, self._threads, self._memories = native, threads, tuple(memories)
        self._seconds: list[tuple[list[Op], Any]] = []
        self._parts = [part for known, ops in self._runs() for part in self._part(known, list(ops), profile)]

    def run(self, step: Step) -> None:
        """Run all on one step. RankLost where a rank that shares the work does not come."""
        record = step_record(step) if self._native is not None else None
        for part in self._parts:
            part(step, record)
        for memory in self._memories:
            memory.check()

    def seconds(self) -> list[tuple[Op, float]]:
        """Seconds that C++ has spent on each of its ops since the last call, where they are kept."""
        out = [(op, float(spent)) for ops, seconds in self._seconds for op, spent in zip(ops, seconds, strict=True)]
        for _, seconds in self._seconds:
            ctypes.memset(seconds, 0, ctypes.sizeof(seconds))
        return out

    def _runs(self) -> Any:
        return groupby(self.ops, lambda op: self._native is not None and op.record() is not None)

    def _part(self, known: bool, ops: list[Op], profile: bool) -> list[Part]:
        native = self._native
        if not known or native is None:
            return [_by_torch(op) for op in ops]
        records = records_of([record for op in ops if (record := op.record()) is not None])
        seconds = (ctypes.c_double * len(ops))() if profile else None
        if seconds is not None:
            self._seconds.append((ops, seconds))

        def run(step: Step, record: StepRecord | None) -> None:
            assert record is not None
            native.run(records, record, self._threads, seconds)

        return [run]


def _by_torch(op: Op) -> Part:
    return lambda step, record: op.twin(step)
