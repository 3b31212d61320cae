"""The gradients of one model chunk on one rank, reduced over dp in buckets behind the backward.

            gradients                                      weights
    zero 0  all-reduce behind the last backward            every rank updates all
    zero 1  reduce-scatter behind the last backward        all-gather after the step, waited for at the next forward
    zero 2  reduce-scatter behind every backward           the same
    zero 3  reduce-scatter behind every backward           all-gather before each use (residence.py)

(Rajbhandari et al., ZeRO, 2020, section 5.) A bucket is sent as soon as its last gradient is in, while the backward of earlier layers
still runs. Where zero cuts over an island only (Layout.shard), shares are then all-reduced across islands, once a step. What tp ranks
or the two ends of a pipe hold in common, with a part of the gradient each, is summed afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from rayplane.comm.communicator import Communicator
from rayplane.comm.mesh import Mesh
from rayplane.comm.transport import Wait
from rayplane.model.parameter import Weight
from rayplane.spec.sharding import is_shared
from rayplane.train.flat import Bucket, bring_back, buckets, drop, is_there

Tensor = torch.Tensor
UNDER_WAY = 2
"""Fleeting buckets whose reduction may run beside the backward; each keeps its whole gradient until then."""


class Gradients:
    """Owns the chunk's memory.

    `units` are weights used together, in the order of forward; `uses` how often a backward adds to each; `spanning` serve two chunks.
    """

    def __init__(self, units: Sequence[Sequence[Weight]], uses: dict[Weight, int], spanning: set[Weight], mesh: Mesh):
        self._dp, self._shard, self._replicate, self._tp, self._tied = mesh.dp, mesh.shard, mesh.replicate, mesh.tp, mesh.tied
        self.buckets = buckets(units, spanning, mesh)
        self._bucket_of = {w: b for b in self.buckets for w in b.weights}
        self._expected = {b: sum(uses[w] for w in b.weights) for b in self.buckets}
        self._missing = self._of_each_backward()
        self._under_way: deque[tuple[Bucket, Wait]] = deque()
        self._waits: list[Wait] = []
        self._gathers: list[Wait] = []
        weights = list(self._bucket_of)
        shared = [w for w in weights if w.partial or any(is_shared(p.tensor, mesh.tp.size) for p in w.parts)]
        self._shared = shared if mesh.tp.size > 1 else []
        self._tied_weights = [w for w in weights if w.parts[0].tensor.tied] if mesh.tied.size > 1 else []

    def zero(self) -> None:
        """Begin a step."""
        for bucket in self.buckets:
            bucket.grads_share.zero_() if bucket.fleeting_grads else bucket.grads.zero_()
        self._missing = self._of_each_backward()

    def watch(self) -> None:
        """The chunk's last backward of the step begins: from now on any complete bucket is reduced at once."""
        if self._dp.size > 1:
            self._missing |= {b: n for b, n in self._expected.items() if not b.fleeting_grads}

    def prepare(self, weight: Weight) -> None:
        """Something is about to be added to a weight's gradient: see that its buffer is there, and not under way."""
        bucket = self._bucket_of[weight]
        if not bucket.fleeting_grads:
            return
        while any(other is bucket for other, _ in self._under_way):
            self._settle()
        if not is_there(bucket.grads):
            bring_back(bucket.grads)
            bucket.grads.zero_()

    def added(self, weight: Weight) -> None:
        """One contribution to a weight's gradient is in its buffer."""
        bucket = self._bucket_of[weight]
        if bucket not in self._missing:
            return
        self._missing[bucket] -= 1
        if self._missing[bucket]:
            return
        if bucket.fleeting_grads:
            self._missing[bucket] = self._expected[bucket]
            while len(self._under_way) >= UNDER_WAY:
                self._settle()
        else:
            del self._missing[bucket]
        self._under_way.append((bucket, self._reduce(bucket)))

    def finish(self) -> None:
        """Wait for the buckets, then sum over tp what its ranks hold in common."""
        while self._under_way:
            self._settle()
        incomplete = [b for b, n in self._missing.items() if n != self._expected[b] or not b.fleeting_grads]
        assert not incomplete, "a weight got no gradient in the last backward"
        if self._replicate.size > 1:
            self._waits += [self._replicate.start_all_reduce(b.grads_share) for b in self.buckets if b.cut]
        for wait in self._waits:
            wait()
        self._waits = []
        _sum_shared(self._shared, self._tp)

    def sum_tied(self) -> None:
        """Sum a tied embedding's gradient over the two ends of the pipe; after this every gradient is whole wherever it is held.

        Not part of `finish`: the ends come to that at different times, and one must not wait while the other needs its backwards.
        """
        for w in self._tied_weights:
            self._tied.all_reduce(w.main_grad)

    def spread(self) -> None:
        """Begin to give the rows that this rank has updated to the other replicas, and to take theirs."""
        for bucket in reversed(self.buckets):
            if bucket.cut and not bucket.fleeting_params:
                self._gathers.append(self._shard.start_all_gather_(bucket.params, bucket.sizes))

    def whole(self) -> None:
        """Wait until the weights are whole again."""
        for wait in self._gathers:
            wait()
        self._gathers = []

    def _of_each_backward(self) -> dict[Bucket, int]:
        """Contributions still to come to the buckets that every backward reduces."""
        return {b: n for b, n in self._expected.items() if b.fleeting_grads}

    def _settle(self) -> None:
        """Wait for the oldest reduction; of a fleeting gradient add up this rank's share and free the rest."""
        bucket, wait = self._under_way.popleft()
        wait()
        if bucket.fleeting_grads:
            bucket.grads_share.add_(bucket.mine(bucket.grads))
            drop(bucket.grads)

    def _reduce(self, bucket: Bucket) -> Wait:
        return self._shard.start_reduce_scatter_(bucket.grads, bucket.sizes) if bucket.cut else self._dp.start_all_reduce(bucket.grads)


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
