"""A Weight is what one rank holds of one or several global tensors, with an fp32 buffer that its gradient is added to.

    qkv.weight  [320 + 128 + 128, hidden]     parts   q rows 0:320,  k rows 320:448,  v rows 448:576
                                                      each the chunk_of its global tensor

Fused weights give one matrix product where three tensors stand in the checkpoint. Gradients do not go through autograd's own
accumulation: a layer hands its weight-gradient work to GradWork, which runs it at once or puts it off until there is
communication to hide it behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rayplane.spec.sharding import Chunk, TensorSpec

Tensor = torch.Tensor
Add = Callable[[Tensor], None]
"""Adds a gradient into the buffer it is given."""
Start = Callable[[], Add]
"""Begins what an Add must wait for."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a Weight are the box `chunk` of the global tensor."""

    tensor: TensorSpec
    chunk: Chunk
    start: int
    stop: int

    def rows(self, first: int, last: int) -> Part | None:
        """What of this part lies in rows [first, last) of the Weight."""
        low, high = max(self.start, first), min(self.stop, last)
        if low >= high:
            return None
        offset, size = self.chunk.offset, self.chunk.size
        chunk = Chunk((offset[0] + low - self.start, *offset[1:]), (high - low, *size[1:]))
        return Part(self.tensor, chunk, low, high)


class Weight(nn.Parameter):
    """A rank's parameter. `main_grad` is set by the optimizer's buffers before the first backward."""

    parts: tuple[Part, ...]
    main_grad: Tensor
    partial: bool
    """Each tp rank has only a part of the gradient, although all hold the whole weight."""

    def views(self, storage: Tensor) -> list[tuple[Part, Tensor]]:
        """The parts of a tensor shaped like this weight (the weight, its gradient, optimizer state)."""
        return [(p, storage[p.start : p.stop]) for p in self.parts]


def weight(tensors: Sequence[TensorSpec], boxes: Sequence[Chunk], dtype: torch.dtype, partial: bool = False) -> Weight:
    """An uninitialised Weight that stacks boxes of global tensors along dim 0."""
    parts, start = [], 0
    for tensor, box in zip(tensors, boxes, strict=True):
        parts.append(Part(tensor, box, start, start + box.size[0]))
        start += box.size[0]
    out = Weight(torch.empty((start, *boxes[0].size[1:]), dtype=dtype))
    out.parts, out.partial = tuple(parts), partial
    return out


Work = list[tuple[Weight, Start]]


class GradWork:
    """Weight-gradient work of one rank. With `defer` it waits in a queue until `run`; else it is done as it comes.

    Between `hold` and `release` all of it is kept, for a schedule that runs it later as an Action of its own.
    """

    def __init__(self, defer: bool):
        self._defer = defer
        self._held = False
        self._queue: Work = []
        self.on_adding: Callable[[Weight], None] | None = None
        """Told of a weight whose gradient is about to be added to."""
        self.on_added: Callable[[Weight], None] | None = None
        """Told of each contribution to a weight's gradient once it is in the buffer."""

    def push(self, weight: Weight, add: Add) -> None:
        """Have `add` add to the weight's gradient, now or at the next `run`."""
        self.push_start(weight, lambda: add)

    def push_start(self, weight: Weight, start: Start) -> None:
        """The same for an add that needs communication: it begins now, or for work that is held when that is done."""
        if self._held:
            self._queue.append((weight, start))
        elif self._defer:
            add = start()
            self._queue.append((weight, lambda: add))
        else:
            self.do([(weight, start)])

    def run(self) -> None:
        """Do what was put off, unless it is held."""
        if not self._held:
            queue, self._queue = self._queue, []
            self.do(queue)

    def hold(self) -> None:
        """From now on keep all work."""
        self._held = True

    def release(self) -> Work:
        """Stop holding; returns what was kept, for `do`."""
        self._held = False
        queue, self._queue = self._queue, []
        return queue

    def buffer(self, weight: Weight) -> Tensor:
        """The weight's gradient, ready to be added to."""
        if self.on_adding:
            self.on_adding(weight)
        return weight.main_grad

    @torch.no_grad()
    def do(self, work: Work) -> None:
        """Do work that was held."""
        for weight, add in _started(work):
            add(self.buffer(weight))
            if self.on_added:
                self.on_added(weight)


def _started(work: Work) -> Iterator[tuple[Weight, Add]]:
    """Each item once the one behind it has begun, so that what that must wait for is under way beside this one."""
    ahead: tuple[Weight, Add] | None = None
    for weight, start in work:
        begun = weight, start()
        if ahead is not None:
            yield ahead
        ahead = begun
    if ahead is not None:
        yield ahead
