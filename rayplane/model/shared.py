"""Finds out whether the ranks of an axis run on one host, and gives them memory to share.

host of each rank ─▶ gathered over the axis ─▶ all the same: rank 0 makes memory, tells its path, all open it
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from rayplane.comm.communicator import Communicator
from rayplane.kernels.native import Native
from rayplane.kernels.shared import MAX_RANKS, Memory, Room, Shared, Sizes, create
from rayplane.kernels.striped import StripedMemory, StripedSizes

NAME_BYTES = 256
S = TypeVar("S", bound=Room)
M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Together:
    """What a rank shares with others of its host; None where there is nobody, or not all are here."""

    tp: Shared | None = None
    cp: StripedMemory | None = None

    @property
    def memories(self) -> tuple[Memory, ...]:
        """All there are."""
        return tuple(memory for memory in (self.tp, self.cp) if memory is not None)


def share(tp: Communicator, native: Native | None, sizes: Sizes, timeout_s: float) -> Shared | None:
    """Memory for this rank's tp group; None where they are one rank, on several hosts, or without C++. All ranks call it alike."""
    return _shared(tp, native, sizes, timeout_s, Shared)


def share_stripes(cp: Communicator, native: Native | None, sizes: StripedSizes, timeout_s: float) -> StripedMemory | None:
    """The same for its cp group."""
    return _shared(cp, native, sizes, timeout_s, StripedMemory)


def _shared(
    axis: Communicator, native: Native | None, sizes: S, timeout_s: float, kind: Callable[[Path, int, int, S, Native, float], M]
) -> M | None:
    if axis.size == 1 or axis.size > MAX_RANKS:
        return None
    hosts = told(axis, _host() if native is not None else f"no C++ on rank {axis.rank}")
    if native is None or len(set(hosts)) > 1:
        return None
    descriptor, path = -1, ""
    if axis.rank == 0:
        try:
            made, descriptor = create(sizes, axis.size)
            path = str(made)
        except OSError:
            path = ""
    try:
        path = told(axis, path)[0]
        shared = kind(Path(path), axis.rank, axis.size, sizes, native, timeout_s) if path else None
        told(axis, "opened")
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return shared


def told(axis: Communicator, text: str) -> list[str]:
    """What each rank of an axis says, at most NAME_BYTES of it."""
    mine = torch.frombuffer(bytearray(text.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")), dtype=torch.uint8)
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in axis.all_gather(mine[None])]


def _host() -> str:
    """Equal on ranks that see each other's processes."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if not boot.exists() or not space.exists():
        return f"unknown, process {os.getpid()}"
    return f"{boot.read_text().strip()} {space.readlink()}"
