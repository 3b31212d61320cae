"""A chunk of the model as it serves: the weights of a ModelChunk as a program over fixed buffers and a paged KV cache.

    ids ─▶ embed ─▶ [ norm ─▶ qkv ─▶ rotate, into the cache ─▶ attend ─▶ x += o     norm ─▶ act(up) ─▶ x += down ] × layers
                                                    of the last chunk ─▶ norm of the wanted rows ─▶ head ─▶ logits

    over tp       x += o       is       part = o,  x += sum of parts over tp      and the ranks' logits stand side by side
    over cp       each rank has the tokens that it keeps (striping.py); queries meet all ranks' keys; a rank has its rows of logits

It is made once from a chunk that was built and loaded as for training, and takes the weights over: none exists twice. On a CPU a step
allocates nothing but a few bytes. On CUDA with flashinfer the last block of the caches belongs to the graphs: give it to no sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch

from rayplane.kernels.native import Native
from rayplane.kernels.op import Op
from rayplane.kernels.paged import LayerCache
from rayplane.kernels.program import Program
from rayplane.model.graphs import DecodeGraphs, Planned
from rayplane.model.layers import Place
from rayplane.model.lowering import Lowering
from rayplane.model.paged import PagedStep
from rayplane.model.shared import Together
from rayplane.model.transformer import ModelChunk
from rayplane.spec.model import ModelSpec

Tensor = torch.Tensor
ALONE = Together()
MAX_HEAD_DIM = 256
"""Of the C++ ops (source/attention_rows.hpp)."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest step, which the buffers are made for."""

    tokens: int
    """Of all sequences together."""
    rows: int
    """Rows of logits."""
    context: int
    """Positions of a sequence."""
    threads: int = 1
    """For the C++ ops; torch's own threads are torch's setting."""


class LoweredChunk:
    """forward(step) on the first stage, forward(step, x) on the others. Not for several threads at once."""

    def __init__(
        self,
        chunk: ModelChunk,
        spec: ModelSpec,
        place: Place,
        caches: Sequence[LayerCache],
        capacity: Capacity,
        native: Native | None,
        together: Together = ALONE,
        profile: bool = False,
    ):
        """Takes the chunk's weights. `caches`: one per layer (rayplane.model.cache). `together`: for tp and cp in one host."""
        device, alone = next(chunk.parameters()).device, place.tp.size == place.cp.size == 1
        if device.type != "cpu" or spec.head_dim > MAX_HEAD_DIM:
            native = None
        lowering = Lowering(chunk, spec, place, capacity, native, together)
        ops: list[Op] = lowering.ops(caches)
        self._plan: Planned | None = None
        if device.type == "cuda" and place.cp.size == 1 and find_spec("flashinfer") is not None:
            ops, self._plan = import_module("rayplane.model.paged_flash").with_flash(ops)
        self.x, self.logits, self.capacity = lowering.x, lowering.logits, capacity
        self.program = Program(ops, native, capacity.threads, together.memories, profile)
        self._cp, self._striped = place.cp, together.cp
        self._first = chunk.embed is not None
        self._graphs: DecodeGraphs | None = None
        if self._plan is not None and alone:
            blocks, block = caches[0].keys.shape[0], caches[0].block
            self._graphs = DecodeGraphs(self.program.run, self._plan, capacity.rows, -(-capacity.context // block), blocks, block)

    @torch.no_grad()
    def forward(self, step: PagedStep, x: Tensor | None = None) -> Tensor:
        """The residual stream [T, H] for the next stage, or on the last one logits [R, vocabulary] fp32, on every tp rank; over cp,
        its own tokens' and rows' (see `all_logits`).

        It is a view of a buffer, valid until the next forward. x [T, H] is what the stage before gave; where it was received into
        `self.x[:T]` it is not copied. The step may lie on the CPU whatever the device. RankLost (rayplane.kernels.shared) where a tp
        rank died or stands still.
        """
        num_tokens, num_rows = step.tokens.shape[0], step.rows.shape[0]
        assert num_tokens <= self.capacity.tokens and num_rows <= self.capacity.rows, "the step is larger than the buffers"
        assert (x is None) == self._first, "the first stage takes tokens, the others the residual stream"
        if x is not None and x.data_ptr() != self.x.data_ptr():
            self.x[:num_tokens] = x
        self._run(step)
        return self.x[:num_tokens] if self.logits is None else self.logits[:num_rows]

    def all_logits(self, step: PagedStep, wanted: bool = True) -> Tensor | None:
        """After forward on the last stage over cp: every row of the step [R, vocabulary], where `wanted`. All cp ranks call it."""
        assert self.logits is not None and step.stripes is not None
        counts, memory = step.stripes.row_counts, self._striped
        if not sum(counts):
            return self.logits[:0]
        mine = self.logits[: counts[self._cp.rank]]
        if memory is None:
            every = self._cp.all_gather(mine, counts)
            return every[step.stripes.row_places().to(every.device)] if wanted else None
        place = memory.logits[memory.rank, : len(mine)]
        if place.data_ptr() != mine.data_ptr():
            place.copy_(mine)
        memory.meet()
        return memory.logits.flatten(0, 1)[step.stripes.row_places(memory.logits.shape[1])] if wanted else None

    def _run(self, step: PagedStep) -> None:
        if self.x.device.type != "cpu":
            step = step.to(self.x.device)
        if self._graphs is not None and self._graphs.replay(step):
            return
        if self._plan is not None:
            self._plan.plan(step)
        self.program.run(step)
