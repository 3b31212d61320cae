"""The gradients of one model chunk on one rank: flat fp32 memory, reduced over dp in buckets behind the last backward.

    weights, last layer first   | head | layer 7 | layer 6 | … | embed |
    buckets of BUCKET_BYTES     [   bucket 0    ][  bucket 1   ][  …   ]     each is sent when its last gradient is in

A bucket's all-reduce starts while the backward of earlier layers still runs. What tp ranks or the two ends of a pipe hold in common,
with a part of the gradient each, is summed afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from rayplane.comm.communicator import Communicator
from rayplane.comm.mesh import Mesh
from rayplane.comm.transport import Wait
from rayplane.model.parameter import Weight
from rayplane.spec.sharding import is_shared

Tensor = torch.Tensor
BUCKET_BYTES = 4 << 20
ALIGNMENT = 16
"""Elements; each gradient starts at a multiple, so that vector instructions meet aligned memory."""


class Gradients:
    """Owns `main_grad` of the chunk's weights. `weights` come in the order of forward; `uses` is how often a backward adds to each."""

    def __init__(self, weights: Sequence[Weight], uses: dict[Weight, int], mesh: Mesh):
        self._dp, self._tp, self._tied, self._uses = mesh.dp, mesh.tp, mesh.tied, uses
        backward_order = list(reversed(weights))
        starts = [0]
        for w in backward_order:
            starts.append(starts[-1] + -(-w.numel() // ALIGNMENT) * ALIGNMENT)
        self.flat = torch.zeros(starts[-1], dtype=torch.float32, device=mesh.device)
        for w, start in zip(backward_order, starts, strict=False):
            w.main_grad = self.flat[start : start + w.numel()].view(w.shape)
        self._weights = backward_order
        self._bucket_of, edges = _cut(backward_order, starts)
        self._buckets = [self.flat[a:b] for a, b in pairwise(edges)]
        self._missing: list[int] = []
        self._waits: dict[int, Wait] = {}
        shared = [w for w in backward_order if w.partial or any(is_shared(p.tensor, mesh.tp.size) for p in w.parts)]
        self._shared = shared if mesh.tp.size > 1 else []
        self._tied_weights = [w for w in backward_order if w.parts[0].tensor.tied] if mesh.tied.size > 1 else []

    def zero(self) -> None:
        """Begin a step."""
        self.flat.zero_()
        self._missing, self._waits = [], {}

    def watch(self) -> None:
        """The chunk's last backward of the step begins: from now on a complete bucket is reduced at once."""
        if self._dp.size > 1:
            self._missing = [0] * len(self._buckets)
            for w in self._weights:
                self._missing[self._bucket_of[w]] += self._uses[w]

    def added(self, weight: Weight) -> None:
        """One contribution to a weight's gradient is in its buffer."""
        if self._missing:
            bucket = self._bucket_of[weight]
            self._missing[bucket] -= 1
            if self._missing[bucket] == 0:
                self._waits[bucket] = self._dp.start_all_reduce(self._buckets[bucket])

    def finish(self) -> None:
        """Wait for the buckets, then sum over tp what its ranks hold in common."""
        if self._dp.size > 1:
            assert len(self._waits) == len(self._buckets), "a weight got no gradient in the last backward"
        for wait in self._waits.values():
            wait()
        _sum_shared(self._shared, self._tp)

    def sum_tied(self) -> None:
        """Sum a tied embedding's gradient over the two ends of the pipe; after this every gradient is whole wherever it is held.

        Not part of `finish`: the ends come to that at different times, and one must not wait while the other needs its backwards.
        """
        for w in self._tied_weights:
            self._tied.all_reduce(w.main_grad)


def _cut(weights: Sequence[Weight], starts: Sequence[int]) -> tuple[dict[Weight, int], list[int]]:
    """(bucket of each weight, edges of the buckets in the flat memory); a weight is never cut."""
    bucket_of: dict[Weight, int] = {}
    edges = [0]
    for w, end in zip(weights, starts[1:], strict=True):
        bucket_of[w] = len(edges) - 1
        if (end - edges[-1]) * 4 >= BUCKET_BYTES or end == starts[-1]:
            edges.append(end)
    return bucket_of, edges


def _sum_shared(weights: Sequence[Weight], tp: Communicator) -> None:
    """One all-reduce over tp of all that several tp ranks hold: replicated weights used on cut activations, shared KV heads."""
    held = [(part, grad) for w in weights for part, grad in w.views(w.main_grad) if w.partial or is_shared(part.tensor, tp.size)]
    if not held:
        return
    buffer = torch.zeros(sum(part.tensor.numel for part, _ in held), device=held[0][1].device)
    wholes = buffer.split([part.tensor.numel for part, _ in held])
    boxes = [w.view(part.tensor.shape)[part.chunk.slices] for w, (part, _) in zip(wholes, held, strict=True)]
    for box, (_, grad) in zip(boxes, held, strict=True):
        box.copy_(grad)
    tp.all_reduce(buffer)
    for box, (_, grad) in zip(boxes, held, strict=True):
        grad.copy_(box)
