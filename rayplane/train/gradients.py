"""The gradients of one model chunk on one rank, reduced over dp in buckets behind the last backward.

            gradients                                  weights after the optimizer step
    zero 0  all-reduce                                 each replica updates all
    zero 1  reduce-scatter: a replica gets its rows    each updates its rows; all-gather, waited for at the next forward

(Rajbhandari et al., ZeRO, 2020, section 5.1: the same bytes.) A bucket is sent as soon as its last gradient is in, while the
backward of earlier layers still runs. What tp ranks or the two ends of a pipe hold in common, with a part of the gradient each, is
summed afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rayplane.comm.communicator import Communicator
from rayplane.comm.mesh import Mesh
from rayplane.comm.transport import Wait
from rayplane.model.parameter import Weight
from rayplane.spec.sharding import is_shared
from rayplane.train.flat import Bucket, FlatMemory

Tensor = torch.Tensor


class Gradients:
    """Owns the chunk's memory. `weights` come in the order of forward; `uses` is how often a backward adds to each."""

    def __init__(self, weights: Sequence[Weight], uses: dict[Weight, int], mesh: Mesh):
        self._dp, self._tp, self._tied = mesh.dp, mesh.tp, mesh.tied
        self.memory = FlatMemory(weights, mesh)
        self._bucket_of = {w: i for i, b in enumerate(self.memory.buckets) for w in b.weights}
        self._expected = [sum(uses[w] for w in b.weights) for b in self.memory.buckets]
        self._missing: list[int] = []
        self._waits: dict[int, Wait] = {}
        self._gathers: list[Wait] = []
        shared = [w for w in weights if w.partial or any(is_shared(p.tensor, mesh.tp.size) for p in w.parts)]
        self._shared = shared if mesh.tp.size > 1 else []
        self._tied_weights = [w for w in weights if w.parts[0].tensor.tied] if mesh.tied.size > 1 else []

    def zero(self) -> None:
        """Begin a step."""
        self.memory.grads.zero_()
        self._missing, self._waits = [], {}

    def watch(self) -> None:
        """The chunk's last backward of the step begins: from now on a complete bucket is reduced at once."""
        if self._dp.size > 1:
            self._missing = list(self._expected)

    def added(self, weight: Weight) -> None:
        """One contribution to a weight's gradient is in its buffer."""
        if self._missing:
            bucket = self._bucket_of[weight]
            self._missing[bucket] -= 1
            if self._missing[bucket] == 0:
                self._waits[bucket] = self._reduce(self.memory.buckets[bucket])

    def finish(self) -> None:
        """Wait for the buckets, then sum over tp what its ranks hold in common."""
        if self._dp.size > 1:
            assert len(self._waits) == len(self.memory.buckets), "a weight got no gradient in the last backward"
        for wait in self._waits.values():
            wait()
        _sum_shared(self._shared, self._tp)

    def sum_tied(self) -> None:
        """Sum a tied embedding's gradient over the two ends of the pipe; after this every gradient is whole wherever it is held.

        Not part of `finish`: the ends come to that at different times, and one must not wait while the other needs its backwards.
        """
        for w in self._tied_weights:
            self._tied.all_reduce(w.main_grad)

    def spread(self) -> None:
        """Begin to give the rows that this rank has updated to the other replicas, and to take theirs."""
        for bucket in reversed(self.memory.buckets):
            if bucket.sizes is not None:
                self._gathers.append(self._dp.start_all_gather_(self.memory.params[bucket.start : bucket.stop], bucket.sizes))

    def whole(self) -> None:
        """Wait until the weights are whole again."""
        for wait in self._gathers:
            wait()
        self._gathers = []

    def _reduce(self, bucket: Bucket) -> Wait:
        grads = self.memory.grads[bucket.start : bucket.stop]
        return self._dp.start_all_reduce(grads) if bucket.sizes is None else self._dp.start_reduce_scatter_(grads, bucket.sizes)


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
