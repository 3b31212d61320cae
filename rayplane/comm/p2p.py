"""Activations and their gradients between the stages of a replica.

    stage s  ── send_f(chunk, mb) ──▶  stage s+1        tag = direction, chunk, microbatch
             ◀── send_b(chunk, mb) ──

Receives are posted before they are needed and waited for where the tensor is used; sends never block. On NCCL a pair of ranks
sends in issue order on one stream per communicator, so each direction has its own.
"""

from __future__ import annotations

import torch

from rayplane.comm.communicator import Communicator
from rayplane.comm.transport import Wait

Tensor = torch.Tensor
FORWARD, BACKWARD = 0, 1
MAX_CHUNKS, MAX_MICROBATCHES = 1 << 10, 1 << 18


class Pipe:
    """One rank's sends and receives along pp."""

    def __init__(self, forward: Communicator, backward: Communicator):
        self._channels = (forward, backward)
        self._sends: dict[int, tuple[Wait, Tensor]] = {}
        self._posted: dict[int, tuple[Wait, Tensor]] = {}

    def send(self, x: Tensor, stage: int, direction: int, chunk: int, microbatch: int) -> None:
        """Send x to a stage for its chunk; returns at once. x is kept until `release` or `flush`."""
        x, tag = x.contiguous(), _tag(direction, chunk, microbatch)
        self._sends[tag] = (self._channels[direction].start_send(x, stage, tag), x)

    def post(self, out: Tensor, stage: int, direction: int, chunk: int, microbatch: int) -> None:
        """Post the receive of what `stage` sends for this rank's chunk."""
        tag = _tag(direction, chunk, microbatch)
        self._posted[tag] = (self._channels[direction].start_recv(out, stage, tag), out)

    def take(self, direction: int, chunk: int, microbatch: int) -> Tensor:
        """Wait for a posted receive and return its tensor."""
        wait, out = self._posted.pop(_tag(direction, chunk, microbatch))
        wait()
        return out

    def release(self, direction: int, chunk: int, microbatch: int) -> None:
        """What was sent to `chunk` is known to have arrived (its gradient is here): free it."""
        self._sends.pop(_tag(direction, chunk, microbatch))[0]()

    def flush(self) -> None:
        """Wait until everything sent has left, so that its memory may be reused."""
        for wait, _ in self._sends.values():
            wait()
        self._sends.clear()


def _tag(direction: int, chunk: int, microbatch: int) -> int:
    """One number per message of a step, below 2^30 (where the tags of ring collectives begin)."""
    if chunk >= MAX_CHUNKS or microbatch >= MAX_MICROBATCHES:
        raise ValueError(f"chunk {chunk} or microbatch {microbatch} is beyond {MAX_CHUNKS} chunks, {MAX_MICROBATCHES} microbatches")
    return (direction * MAX_CHUNKS + chunk) * MAX_MICROBATCHES + microbatch
