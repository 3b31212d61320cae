"""AdamW's state in the host's memory: gradients come down in loads, are applied there, and the new weights go up.

    down    │ gradients 0 │ gradients 1 │ gradients 2 │
    host                  │   AdamW 0   │   AdamW 1   │   AdamW 2   │
    up                                  │  weights 0  │  weights 1  │  weights 2  │

(Ren et al., ZeRO-Offload, 2021.) On a GPU each direction has a stream and two pinned buffers, so that copies run beside the host's
work; the state itself never travels and needs no pinning. On a CPU the same copies are done at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rayplane.train.state import Shard

Tensor = torch.Tensor
Load = list[Shard]
LOAD_ELEMENTS = 1 << 24
"""Of a load, unless a single row has more; each direction has buffers for two."""


class Offload:
    """Moves the gradients of some shards, whose state is on the host, down from their device, and their weights up."""

    def __init__(self, shards: Sequence[Shard], device: torch.device):
        self._loads, self._device = cut(shards), device
        self._runtime = torch.get_device_module(device)
        size = max((_numel(load) for load in self._loads), default=0)
        kind = shards[0].rows.param.dtype if shards else torch.float32
        self._down, self._up = (_Lane(size, dtype, device, self._runtime) for dtype in (torch.float32, kind))

    def loads(self) -> Iterator[tuple[Load, list[Tensor]]]:
        """Shards and their gradients on the host, load by load; the shards' weights go up when the next load is asked for.

        When all are done, what the compute stream does next comes after the last weights.
        """
        compute = self._runtime.current_stream(self._device)
        self._down.stream.wait_stream(compute)
        self._up.stream.wait_stream(compute)
        self._fetch(0)
        for i, load in enumerate(self._loads):
            self._fetch(i + 1)
            self._down.wait(i)
            yield load, self._down.views(i, load)
            self._send(i)
        compute.wait_stream(self._up.stream)

    def _fetch(self, i: int) -> None:
        """Begin to copy load i's gradients down, if there is one. Their buffer is free: the host has applied what was in it."""
        if i >= len(self._loads):
            return
        load = self._loads[i]
        with self._down.copies(i):
            for view, shard in zip(self._down.views(i, load), load, strict=True):
                view.copy_(shard.grad, non_blocking=True)

    def _send(self, i: int) -> None:
        """Begin to copy a load's weights up, once their buffer is free."""
        load = self._loads[i]
        views = self._up.views(i, load)
        self._up.wait(i)
        for view, shard in zip(views, load, strict=True):
            view.copy_(shard.master)
        with self._up.copies(i):
            for view, shard in zip(views, load, strict=True):
                shard.rows.param.copy_(view, non_blocking=True)


class _Lane:
    """One direction: a stream, and two buffers that loads use in turn."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, runtime: Any):
        self._buffers = torch.empty((2, size), dtype=dtype, pin_memory=device.type == "cuda")
        self._runtime, self.stream = runtime, runtime.Stream()
        self._copied = (runtime.Event(), runtime.Event())

    def views(self, i: int, load: Load) -> list[Tensor]:
        """Load i's part of its buffer, shaped like its shards."""
        shapes = [shard.master.shape for shard in load]
        flat = self._buffers[i % 2, : _numel(load)].split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(flat, shapes, strict=True)]

    @contextmanager
    def copies(self, i: int) -> Iterator[None]:
        """Copies of load i go to the stream inside."""
        with self._runtime.stream(self.stream):
            yield
        self._copied[i % 2].record(self.stream)

    def wait(self, i: int) -> None:
        """Have the host wait for the last copies to or from the buffer of load i."""
        self._copied[i % 2].synchronize()


def cut(shards: Sequence[Shard]) -> list[Load]:
    """Shards in loads of at most LOAD_ELEMENTS; one that does not fit is cut between its rows."""
    out: list[Load] = []
    room = 0
    for shard in shards:
        rows = shard.master.shape[0]
        width, first = shard.master.numel() // rows, 0
        while first < rows:
            if room < width:
                out.append([])
                room = LOAD_ELEMENTS
            last = min(rows, first + max(1, room // width))
            out[-1].append(shard.part(first, last))
            room, first = room - (last - first) * width, last
    return out


def _numel(load: Load) -> int:
    return sum(shard.master.numel() for shard in load)
