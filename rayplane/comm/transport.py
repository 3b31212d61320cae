"""How a group's bytes move: the few primitives under a Communicator, for gloo (CPU) and for NCCL (CUDA).

gloo's own all-reduce of 4 KiB between two processes takes over a millisecond where a send and a receive take a tenth of it, so on a CPU
the collectives are rings written on sends and receives; the bytes counted are then bytes sent, not a formula. Process groups are made
from a store, never from torch's global state: several meshes can live in one process, and a mesh can be formed anew in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rayplane.spec.layout import split

Tensor = torch.Tensor
Wait = Callable[[], None]
"""Finishes an operation that was started; on CUDA it makes the compute stream wait, not the host."""


class Transport(Protocol):
    """Primitives of one group of `size` ranks. All ranks call collectives in the same order. Tensors are contiguous.

    Each method that moves data returns the bytes this rank sends, the second item (or only item) being what finishes it.
    """

    def all_reduce(self, x: Tensor, op: str) -> tuple[int, Wait]:
        """Start the reduction ("sum" or "max") of x over the group, in place."""

    def all_gather(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> tuple[int, Wait]:
        """Start filling `out` with every rank's x along dim 0; rank i's part has sizes[i] rows."""

    def reduce_scatter(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> tuple[int, Wait]:
        """Start the sum of x over the group; this rank's rows of it go to `out`."""

    def send(self, x: Tensor, peer: int, tag: int) -> Wait:
        """Start sending x to a rank of the group; x must not change until the wait."""

    def recv(self, out: Tensor, peer: int, tag: int) -> Wait:
        """Start receiving into out."""

    def close(self) -> None:
        """Leave the group; peers blocked on this rank fail at once."""


class GlooTransport:
    """Rings over gloo's sends and receives, run by one background thread per group so that compute goes on beside them.

    The thread starts with the first asynchronous use; ring step tags count up from 2^30, above the tags of plain sends.
    """

    _FIRST_TAG = 1 << 30

    def __init__(self, store: dist.Store, rank: int, size: int, timeout_s: float):
        self.rank, self.size = rank, size
        self._timeout = timedelta(seconds=timeout_s)
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, self._timeout)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ring")
        self._tag = self._FIRST_TAG

    def all_reduce(self, x: Tensor, op: str) -> tuple[int, Wait]:
        """2 N (p-1)/p bytes: a reduce-scatter and an all-gather; one exchange of the whole between two ranks."""
        flat, tags = x.view(-1), self._take_tags(2 * (self.size - 1))
        add = torch.Tensor.add_ if op == "sum" else _maximum_
        if self.size == 2:
            return flat.nbytes, self._start(lambda: self._exchange(flat, add, tags))
        sizes = [split(flat.numel(), self.size, i)[1] for i in range(self.size)]
        pieces = list(flat.split(sizes))
        sent = sum(sum(p.nbytes for p in pieces) - pieces[(self.rank + shift) % self.size].nbytes for shift in (1, 2))

        def run() -> None:
            self._ring_reduce(pieces, add, tags)
            self._ring_gather(pieces, tags + self.size - 1)

        return sent, self._start(run)

    def all_gather(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> tuple[int, Wait]:
        """N (p-1)/p bytes."""
        pieces = _rows(out, sizes)
        if x.data_ptr() != pieces[self.rank].data_ptr():
            pieces[self.rank].copy_(x)
        tags = self._take_tags(self.size - 1)
        sent = out.nbytes - pieces[(self.rank + 1) % self.size].nbytes
        return sent, self._start(lambda: self._ring_gather(pieces, tags, first=self.rank))

    def reduce_scatter(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> tuple[int, Wait]:
        """N (p-1)/p bytes. The ring ends with piece r on rank r: it is the all-reduce's first half, one place on."""
        pieces = _rows(x.clone(), sizes)
        tags = self._take_tags(self.size - 1)
        sent = x.nbytes - pieces[self.rank].nbytes

        def run() -> None:
            self._ring_reduce(pieces, torch.Tensor.add_, tags, first=self.rank - 1)
            out.copy_(pieces[self.rank])

        return sent, self._start(run)

    def send(self, x: Tensor, peer: int, tag: int) -> Wait:
        """gloo queues the message; the wait also keeps x alive."""
        work = self._group.send([x], peer, tag)
        return lambda: _wait(work, self._timeout, x)

    def recv(self, out: Tensor, peer: int, tag: int) -> Wait:
        """Posted at once, so that the message lands in `out` itself."""
        work = self._group.recv([out], peer, tag)
        return lambda: _wait(work, self._timeout, out)

    def close(self) -> None:
        """Dropping the group closes its connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._group = None

    def _start(self, run: Callable[[], None]) -> Wait:
        # Autograd's mode belongs to a thread: what an autograd function hands over must not be recorded here.
        future: Future[None] = self._thread.submit(torch.no_grad()(run))
        return lambda: future.result(self._timeout.total_seconds() + 1.0)

    def _take_tags(self, count: int) -> int:
        first = self._tag
        self._tag = first + count if first + count < 2**31 - 4 * self.size else self._FIRST_TAG
        return first

    def _exchange(self, flat: Tensor, add: Callable[[Tensor, Tensor], Any], tag: int) -> None:
        other = torch.empty_like(flat)
        receive, send = self.recv(other, 1 - self.rank, tag), self.send(flat, 1 - self.rank, tag)
        receive()
        send()
        add(flat, other)

    def _ring_reduce(self, pieces: list[Tensor], add: Callable[[Tensor, Tensor], Any], tag: int, first: int | None = None) -> None:
        """p-1 steps: send a partial sum to the next rank, add the one from the rank before. Ends with piece `first + 1` whole."""
        self._ring(pieces, self.rank if first is None else first, tag, add)

    def _ring_gather(self, pieces: list[Tensor], tag: int, first: int | None = None) -> None:
        """p-1 steps: hand on the piece received last, beginning with the whole one."""
        self._ring(pieces, self.rank + 1 if first is None else first, tag, None)

    def _ring(self, pieces: list[Tensor], first: int, tag: int, add: Callable[[Tensor, Tensor], Any] | None) -> None:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for step in range(self.size - 1):
            out, into = pieces[(first - step) % self.size], pieces[(first - step - 1) % self.size]
            target = torch.empty_like(into) if add else into
            # A piece without elements is not sent: both sides know its size.
            waits = [self.recv(target, before, tag + step)] if into.numel() else []
            waits += [self.send(out, after, tag + step)] if out.numel() else []
            for wait in waits:
                wait()
            if add and into.numel():
                add(into, target)


class NcclTransport:
    """NCCL's own collectives; they run on NCCL's stream, and a wait orders the current stream behind them.

    Sends and receives of each direction between two ranks run in issue order; tags are not used.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout_s: float):
        self.rank, self.size = rank, size
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)

    def all_reduce(self, x: Tensor, op: str) -> tuple[int, Wait]:
        """2 N (p-1)/p bytes."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX)
        return 2 * x.nbytes * (self.size - 1) // self.size, self._group.allreduce([x], options).wait

    def all_gather(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> tuple[int, Wait]:
        """N (p-1)/p bytes; uneven parts go through NCCL's grouped broadcasts."""
        sent = out.nbytes * (self.size - 1) // self.size
        if len(set(sizes)) == 1:
            return sent, self._group._allgather_base(out, x).wait
        return sent, self._group.allgather([_rows(out, sizes)], [x]).wait

    def reduce_scatter(self, out: Tensor, x: Tensor, sizes: Sequence[int]) -> tuple[int, Wait]:
        """N (p-1)/p bytes; uneven parts go through NCCL's grouped reductions."""
        sent = x.nbytes * (self.size - 1) // self.size
        if len(set(sizes)) == 1:
            return sent, self._group._reduce_scatter_base(out, x).wait
        return sent, self._group.reduce_scatter([out], [_rows(x, sizes)]).wait

    def send(self, x: Tensor, peer: int, tag: int) -> Wait:
        """Runs on NCCL's stream for this pair of ranks."""
        work = self._group.send([x], peer, tag)
        return lambda: _wait_stream(work, x)

    def recv(self, out: Tensor, peer: int, tag: int) -> Wait:
        """Runs on NCCL's stream for this pair of ranks."""
        work = self._group.recv([out], peer, tag)
        return lambda: _wait_stream(work, out)

    def close(self) -> None:
        """Abort: peers that wait for this rank fail instead of hanging."""
        if self._group is not None:
            self._group.abort()
        self._group = None


def _wait(work: Any, timeout: timedelta, keep: Tensor) -> None:
    """Wait for a gloo operation; `keep` is the buffer that it works on."""
    work.wait(timeout)


def _wait_stream(work: Any, keep: Tensor) -> None:
    """Order the current stream behind an NCCL operation; `keep` is the buffer that it works on."""
    work.wait()


def _maximum_(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y, out=x)


def _rows(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    starts = [0, *accumulate(sizes)]
    return [x[a:b] for a, b in pairwise(starts)]
