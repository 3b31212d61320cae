"""Weights under ZeRO-3: gathered from their shares just before a module uses them, and freed behind it.

    forward     gather layer 1 | compute layer 0 | free layer 0 | gather layer 2 | compute layer 1 | …
    backward    the same from the last layer to the first                     (Rajbhandari et al., 2020, section 5.3)

Each opening begins the gathering of the next module's weights, so that at most two modules' weights are there at a time. The
embedding and the head are needed in forward only: their backwards read activations alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rayplane.comm.communicator import Communicator
from rayplane.comm.transport import Wait
from rayplane.train.flat import Bucket, bring_back, drop, is_there


class Residence:
    """The fleeting weights of one rank's chunks; `move_in` makes a chunk known."""

    def __init__(self, shard: Communicator):
        self._shard = shard
        self._buckets: dict[nn.Module, tuple[Bucket, ...]] = {}
        self._neighbours: dict[nn.Module, tuple[nn.Module | None, nn.Module | None]] = {}
        self._coming: dict[Bucket, Wait] = {}

    def move_in(self, units: Sequence[tuple[nn.Module, bool]], buckets: Sequence[Bucket]) -> None:
        """`units` are modules in the order of forward, and whether their backward needs their weights."""
        for i, (module, _) in enumerate(units):
            held = set(module.parameters())
            self._buckets[module] = tuple(b for b in buckets if b.fleeting_params and not held.isdisjoint(b.weights))
            before = units[i - 1][0] if i and units[i - 1][1] else None
            self._neighbours[module] = (before, units[i + 1][0] if i + 1 < len(units) else None)

    def buckets(self) -> set[Bucket]:
        """All that is fleeting."""
        return {b for held in self._buckets.values() for b in held}

    def open(self, module: nn.Module, backward: bool) -> None:
        """Have the module's weights there, and begin to gather those of the module that comes next."""
        self._gather(module)
        for bucket in self._buckets[module]:
            if bucket in self._coming:
                self._coming.pop(bucket)()
        before, after = self._neighbours[module]
        following = before if backward else after
        if following is not None:
            self._gather(following)

    def close(self, module: nn.Module) -> None:
        """Free the module's weights but for this rank's share."""
        for bucket in self._buckets[module]:
            drop(bucket.params)

    def _gather(self, module: nn.Module) -> None:
        for bucket in self._buckets[module]:
            if not is_there(bucket.params):
                bring_back(bucket.params)
                bucket.mine(bucket.params).copy_(bucket.params_share)
                self._coming[bucket] = self._shard.start_all_gather_(bucket.params, bucket.sizes)
