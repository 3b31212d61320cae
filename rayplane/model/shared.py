"""Finds out whether the tp ranks run on one host, and gives them memory to share.

host of each rank ─▶ gathered over tp ─▶ all the same: rank 0 makes memory, tells its path, all open it
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from rayplane.comm.communicator import Communicator
from rayplane.kernels.native import Native
from rayplane.kernels.shared import MAX_RANKS, Shared, Sizes, create

NAME_BYTES = 256


def share(tp: Communicator, native: Native | None, sizes: Sizes, timeout_s: float) -> Shared | None:
    """Memory for this rank's tp group; None where they are one rank, on several hosts, or without C++. All ranks call it alike."""
    if tp.size == 1 or tp.size > MAX_RANKS:
        return None
    hosts = told(tp, _host() if native is not None else f"no C++ on rank {tp.rank}")
    if native is None or len(set(hosts)) > 1:
        return None
    descriptor, path = -1, ""
    if tp.rank == 0:
        try:
            made, descriptor = create(sizes, tp.size)
            path = str(made)
        except OSError:
            path = ""
    try:
        path = told(tp, path)[0]
        shared = Shared(Path(path), tp.rank, tp.size, sizes, native, timeout_s) if path else None
        told(tp, "opened")
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
