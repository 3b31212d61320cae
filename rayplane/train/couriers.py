"""Files in memory that travel from rank to rank: mapped, and sent from there in pieces straight into the other side's mapped file.

source   file ─mmap─▶ | piece 0 | piece 1 | …      target   reserve(file, size) ─mmap─▶ the same pieces
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch

from rayplane.comm.communicator import Communicator
from rayplane.comm.transport import Wait

PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Journey:
    """A file to send to a rank of the axis, or to fill with what that rank sends."""

    path: Path
    size: int
    peer: int
    sends: bool


def reserve(path: Path, size: int) -> None:
    """Make a file of a size whose memory is surely there: a write to a mapped hole for which there is none would kill the process."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def carry(axis: Communicator, journeys: Sequence[Journey]) -> None:
    """Send and receive side by side; the other ends do the same. At most one journey each way between two ranks."""
    started = [_pieces(journey) for journey in journeys]
    for number, pieces in enumerate(zip_longest(*started)):
        waits: list[Wait] = []
        for journey, piece in zip(journeys, pieces, strict=True):
            if piece is not None:
                start = axis.start_send if journey.sends else axis.start_recv
                waits.append(start(piece, journey.peer, number))
        for wait in waits:
            wait()


def _pieces(journey: Journey) -> tuple[torch.Tensor, ...]:
    whole = torch.from_file(str(journey.path), shared=True, size=journey.size, dtype=torch.uint8)
    return whole.split(PIECE_BYTES)
