"""Memory that the tp ranks of one host share, and sums through it: some microseconds each, where gloo takes most of a millisecond.

    header | parts [2, ranks, tokens, H] fp32 | logits [rows, vocabulary] fp32

It is a file in memory without a name, so nothing is left behind whoever dies. A rank that waits looks now and then whether its peer
lives; the first that gives up frees the others.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from rayplane.errors import RayplaneError
from rayplane.kernels.native import Native
from rayplane.kernels.records import Kind, OpRecord, Step, record

Tensor = torch.Tensor
HEADER_BYTES = 16384
MAX_RANKS = 64


class RankLost(RayplaneError):
    """A rank that this one works with is dead or does not answer."""


class Room(Protocol):
    """What a memory must hold."""

    def memory_bytes(self, ranks: int) -> int:
        """All of it."""


class Memory:
    """One rank's view of memory that the ranks of an axis share: a header, by which they meet, and what they keep behind it.

    Opens `path`, which `create` gave on one of the ranks. All ranks must have opened it before they meet.
    """

    def __init__(self, axis: str, path: Path, rank: int, ranks: int, room: Room, native: Native, timeout_s: float):
        with path.open("r+b") as file:
            self.whole = torch.frombuffer(mmap.mmap(file.fileno(), room.memory_bytes(ranks)), dtype=torch.uint8)
        self.axis, self.rank, self.ranks, self.timeout_s = axis, rank, ranks, timeout_s
        self.failure = torch.zeros(1, dtype=torch.int64)
        self._native = native
        native.enter(self.whole.data_ptr(), rank, os.getpid())

    def meet(self) -> None:
        """Wait for all ranks, outside a program. RankLost where one does not come."""
        self.failure[0] = self._native.meet(self.whole.data_ptr(), self.rank, self.ranks, self.timeout_s)
        self.check()

    def check(self) -> None:
        """RankLost where a rank did not come."""
        failure = int(self.failure[0])
        if not failure:
            return
        peer, late = (failure - 1) % self.ranks, failure > self.ranks
        why = f"has not answered for {self.timeout_s:.0f} s" if late else "is dead"
        raise RankLost(f"{self.axis} rank {peer} {why}: its gang must be restarted")

    def record(self, kind: Kind, dtype: torch.dtype, tensors: tuple[Tensor | None, ...], sizes: tuple[int, ...]) -> OpRecord:
        """An op for C++ in which the ranks meet, over three tensors; `sizes` is what its n begins and ends with."""
        width, *others = sizes
        return record(kind, dtype, (self.whole, *tensors, self.failure), (width, self.rank, self.ranks, *others), (self.timeout_s,))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory must hold: parts of sums [tokens, hidden], and logits [rows, vocab]."""

    tokens: int
    hidden: int
    rows: int
    vocab: int

    def memory_bytes(self, ranks: int) -> int:
        """All of it."""
        return HEADER_BYTES + 4 * (2 * ranks * self.tokens * self.hidden + self.rows * self.vocab)


class Shared(Memory):
    """The memory of tp ranks. They sum in the same order, as many times."""

    def __init__(self, path: Path, rank: int, ranks: int, sizes: Sizes, native: Native, timeout_s: float):
        super().__init__("tp", path, rank, ranks, sizes, native, timeout_s)
        floats = self.whole[HEADER_BYTES:].view(torch.float32)
        parts, logits = floats.split((2 * ranks * sizes.tokens * sizes.hidden, sizes.rows * sizes.vocab))
        self.logits = logits.view(sizes.rows, sizes.vocab)
        self._parts = parts.view(2, ranks, sizes.tokens, sizes.hidden)
        self._sums = 0

    def part(self) -> Tensor:
        """Where this rank writes its part of the sum that is added next, [tokens, H]."""
        return self._parts[self._sums % 2, self.rank]

    def sum_into(self, out: Tensor, bias: Tensor | None, add: bool) -> SharedSum:
        """An op that makes the sum of all ranks' parts (+ bias) `out`, or adds it."""
        parts = self._parts[self._sums % 2]
        self._sums += 1
        return SharedSum(self, parts, out, bias, add)

    def meeting(self) -> Meeting:
        """An op that ends when all ranks have come to it."""
        self._sums += 1
        return Meeting(self)

    @property
    def even(self) -> bool:
        """Whether a program may end here: the next run begins with the other half of the parts than this one ended with."""
        return self._sums % 2 == 0


@dataclass(frozen=True, slots=True)
class SharedSum:
    """out [tokens, H] = or += the sum over ranks of parts [ranks, tokens, H], in the order of ranks, + bias."""

    shared: Shared
    parts: Tensor
    out: Tensor
    bias: Tensor | None
    add: bool

    def record(self) -> OpRecord:
        sizes = (self.parts.shape[2], self.parts.stride(0), self.out.stride(0), int(self.add), 0)
        return self.shared.record(Kind.SUM, self.out.dtype, (self.parts, self.out, self.bias), sizes)

    def twin(self, step: Step) -> None:
        self.shared.meet()
        rows = slice(0, step.tokens.shape[0])
        total = self.parts[:, rows].sum(0)
        total = total if self.bias is None else total + self.bias.float()
        self.out[rows] = total + self.out[rows].float() if self.add else total


@dataclass(frozen=True, slots=True)
class Meeting:
    """Waits for all ranks."""

    memory: Memory

    def record(self) -> OpRecord:
        return self.memory.record(Kind.SUM, torch.float32, (None, None, None), (0, 0, 0, 0, 1))

    def twin(self, step: Step) -> None:
        self.memory.meet()


def create(room: Room, ranks: int) -> tuple[Path, int]:
    """New memory: its path for the other ranks of this host, and a descriptor to close once all have opened it.

    OSError where the system has no such memory.
    """
    if not hasattr(os, "memfd_create") or ranks > MAX_RANKS:
        raise OSError("no memory files here")
    descriptor = os.memfd_create("rayplane")
    os.truncate(descriptor, room.memory_bytes(ranks))
    return Path(f"/proc/{os.getpid()}/fd/{descriptor}"), descriptor
