"""The optimizer's state as one rank holds it, weight by weight, and the boxes of global tensors that a checkpoint sees in it.

on the device                        rows of a weight (fp32 or bf16) and their gradient (fp32)
on the device, or on the host        their fp32 master and AdamW's two moments; on the device an fp32 weight is its own master
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from rayplane.model.parameter import Part
from rayplane.train.flat import Bucket, Rows

Tensor = torch.Tensor
STATES = ("model", "exp_avg", "exp_avg_sq")
"""What a checkpoint holds of each tensor: fp32 weights, and AdamW's two moments."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of one global tensor of a checkpoint, as one rank holds it. `name` is STATE/TENSOR."""

    name: str
    part: Part
    data: Tensor
    copy: int
    num_copies: int
    """Which of how many ranks that hold it alike this is."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows of a weight whose state this rank holds."""

    rows: Rows
    states: tuple[Tensor, Tensor, Tensor]
    """In the order of STATES, each shaped like the rows."""
    copy: int
    num_copies: int
    """Which of how many ranks that hold this state alike this is."""

    @property
    def grad(self) -> Tensor:
        """The rows' gradient."""
        return self.rows.grad

    @property
    def master(self) -> Tensor:
        """The rows in fp32."""
        return self.states[0]

    @property
    def decay(self) -> bool:
        """Whether weight decay applies."""
        return self.rows.weight.parts[0].tensor.decay

    def pieces(self, storage: Tensor) -> Iterator[tuple[Part, Tensor]]:
        """The boxes of global tensors in a tensor shaped like these rows."""
        first, last = self.rows.first, self.rows.last
        for part in self.rows.weight.parts:
            if (inside := part.rows(first, last)) is not None:
                yield inside, storage[inside.start - first : inside.stop - first]

    def part(self, first: int, last: int) -> Shard:
        """Some of the rows, counted from the first of these; it shares their memory."""
        rows, here = self.rows, slice(first, last)
        some = replace(rows, first=rows.first + first, last=rows.first + last, param=rows.param[here], grad=rows.grad[here])
        master, average, square = (state[here] for state in self.states)
        return replace(self, rows=some, states=(master, average, square))

    def write_back(self) -> None:
        """Bring the weight in line with its master."""
        if self.master is not self.rows.param:
            self.rows.param.copy_(self.master)


def shards_of(bucket: Bucket, on_host: bool) -> Iterator[Shard]:
    """Fresh state for what this rank updates of a bucket."""
    for rows in bucket.rows():
        device = torch.device("cpu") if on_host else rows.param.device
        master = rows.param.to(device, torch.float32, copy=on_host)
        yield Shard(rows, (master, torch.zeros_like(master), torch.zeros_like(master)), bucket.copy, bucket.num_copies)
