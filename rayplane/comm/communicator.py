"""A Communicator is the ranks of one mesh axis: collectives and point-to-point, each entered into the byte ledger and the phase clock.

    tp = mesh.tp
    tp.all_reduce(x)                      # in place, over the axis
    finish = tp.start_all_reduce(x)       # the same beside compute; finish() when the result is needed

An axis of one rank costs nothing: every method returns at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from rayplane.comm.clock import PhaseClock
from rayplane.comm.ledger import Ledger
from rayplane.comm.transport import Transport, Wait

Tensor = torch.Tensor


FIRST_SHIFT_TAG, SHIFT_TAGS = 1 << 29, 1 << 20


class Communicator:
    """The ranks of one axis. `rank` and `size` are positions on that axis, not global ranks."""

    def __init__(self, axis: str, rank: int, size: int, transport: Transport | None, ledger: Ledger, clock: PhaseClock, phase: str):
        if size > 1 and transport is None:
            raise ValueError(f"axis {axis} of {size} ranks needs a transport")
        self.axis, self.rank, self.size = axis, rank, size
        self._shifts = 0
        self._transport, self._ledger, self._clock, self._phase = transport, ledger, clock, phase

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """Reduce x ("sum" or "max") over the axis in place; every rank gets the same bits."""
        self.start_all_reduce(x, op)()
        return x

    def start_all_reduce(self, x: Tensor, op: str = "sum") -> Wait:
        """Begin an in-place all-reduce; x holds the result once the returned function has been called."""
        if self.size == 1 or not x.numel():
            return _nothing
        return self._begin("all_reduce", lambda t: t.all_reduce(x, op))

    def all_gather(self, x: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """Every rank's x along dim 0, in rank order; `sizes` gives each rank's rows where they differ."""
        out, finish = self.start_all_gather(x, sizes)
        finish()
        return out

    def start_all_gather(self, x: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, Wait]:
        """Begin an all-gather; the tensor holds every rank's x once the returned function has been called."""
        if self.size == 1:
            return x, _nothing
        sizes = sizes or [x.shape[0]] * self.size
        out = x.new_empty((sum(sizes), *x.shape[1:]))
        return out, self._begin("all_gather", lambda t: t.all_gather(out, x.contiguous(), sizes))

    def reduce_scatter(self, x: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """This rank's rows of the sum of x over the axis; `sizes` gives each rank's rows where they differ."""
        out, finish = self.start_reduce_scatter(x, sizes)
        finish()
        return out

    def start_reduce_scatter(self, x: Tensor, sizes: Sequence[int] | None = None) -> tuple[Tensor, Wait]:
        """Begin a reduce-scatter; the tensor holds this rank's rows once the returned function has been called."""
        if self.size == 1:
            return x, _nothing
        sizes = sizes or [x.shape[0] // self.size] * self.size
        out = x.new_empty((sizes[self.rank], *x.shape[1:]))
        return out, self._begin("reduce_scatter", lambda t: t.reduce_scatter(out, x.contiguous(), sizes))

    def start_reduce_scatter_(self, x: Tensor, sizes: Sequence[int]) -> Wait:
        """Begin to sum flat x over the axis; afterwards this rank's part of x, of sizes[rank] elements, holds the sum."""
        first = sum(sizes[: self.rank])
        out = x[first : first + sizes[self.rank]]
        return self._begin("reduce_scatter", lambda t: t.reduce_scatter(out, x, sizes))

    def start_all_gather_(self, x: Tensor, sizes: Sequence[int]) -> Wait:
        """Begin to fill flat x with every rank's part of it; this rank's own part is there already."""
        first = sum(sizes[: self.rank])
        part = x[first : first + sizes[self.rank]]
        return self._begin("all_gather", lambda t: t.all_gather(x, part, sizes))

    def start_shift(self, x: Tensor, shape: Sequence[int]) -> Callable[[], Tensor]:
        """Begin to send x to the next rank of the axis and to receive a tensor of `shape` from the one before.

        Returns what waits for that tensor and gives it.
        """
        out = x.new_empty(tuple(shape))
        # Both sides count their shifts alike; tags of plain messages end well below this.
        tag = self._shifts = self._shifts % SHIFT_TAGS + 1
        x = x.contiguous()
        # What is empty is not sent: both sides know its size.
        receive = self.start_recv(out, (self.rank - 1) % self.size, FIRST_SHIFT_TAG + tag) if out.numel() else _nothing
        send = self.start_send(x, (self.rank + 1) % self.size, FIRST_SHIFT_TAG + tag) if x.numel() else _nothing

        def finish() -> Tensor:
            receive()
            send()
            return out

        return finish

    def start_send(self, x: Tensor, peer: int, tag: int) -> Wait:
        """Begin to send contiguous x to rank `peer` of the axis; x must stay as it is until the wait."""
        self._ledger.add(self.axis, "send", x.nbytes, 0.0)
        return self._timed("send", self._live.send(x, peer, tag))

    def start_recv(self, out: Tensor, peer: int, tag: int) -> Wait:
        """Begin to receive from rank `peer` into out."""
        self._ledger.add(self.axis, "recv", 0, 0.0)
        return self._timed("recv", self._live.recv(out, peer, tag))

    def close(self) -> None:
        """Leave the axis; peers that wait for this rank fail at once."""
        if self._transport is not None:
            self._transport.close()

    @property
    def _live(self) -> Transport:
        if self._transport is None:
            raise ValueError(f"axis {self.axis} has one rank: nobody to talk to")
        return self._transport

    def _begin(self, op: str, start: Callable[[Transport], tuple[int, Wait]]) -> Wait:
        begin = time.perf_counter()
        with self._clock.phase(self._phase):
            sent, wait = start(self._live)
        self._ledger.add(self.axis, op, sent, time.perf_counter() - begin)
        return self._timed(op, wait)

    def _timed(self, op: str, wait: Wait) -> Wait:
        def finish() -> None:
            begin = time.perf_counter()
            with self._clock.phase(self._phase):
                wait()
            self._ledger.add(self.axis, op, 0, time.perf_counter() - begin, calls=0)

        return finish


def _nothing() -> None:
    """The wait of an operation that had nothing to do."""
