"""One rank of a replica: its part of the model, its cache, and a step.

step ─▶ copies of shared blocks ─▶ (residual stream of the stage before) ─▶ LoweredChunk ─┬▶ residual stream to the next stage
                                                                                          └▶ logits ─▶ Sampler ─▶ Sampled

Over cp a rank does its part of the step (rayplane.model.striping): a block of the scheduler is `block` tokens on each cp rank.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch

from rayplane.comm.mesh import Mesh
from rayplane.comm.transport import Wait
from rayplane.kernels.native import load
from rayplane.kernels.paged import LayerCache
from rayplane.kernels.shared import Sizes
from rayplane.kernels.striped import StripedSizes
from rayplane.model.cache import CacheSpec, cache_spec, heads_of, make_cache
from rayplane.model.lowered import Capacity, LoweredChunk
from rayplane.model.paged import PagedStep
from rayplane.model.shared import Together, share, share_stripes
from rayplane.model.striping import Striping
from rayplane.serve.batch import StepArrays
from rayplane.serve.loading import DTYPES, load_chunk
from rayplane.serve.notes import decode
from rayplane.serve.outputs import Sampled
from rayplane.serve.sampler import Due, NewMatcher, Sampler
from rayplane.spec.model import ModelSpec

Tensor = torch.Tensor

TAGS = 1 << 20
"""Steps have different tags for so long; by then the first has long arrived."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What the ranks of a replica must know to serve a model."""

    path: Path
    dtype: str
    """fp32 or bf16."""
    kv_dtype: str
    """auto, fp32, bf16, int8 or fp8."""
    block: int
    """Tokens of a cache block."""
    max_context: int
    max_tokens: int
    """Of a step."""
    max_rows: int
    """Rows of logits of a step."""
    threads: int = 1
    timeout_s: float = 60.0
    """How long a rank waits for another one within a step."""


class ServeRank:
    """Built once `blocks` is agreed on; see `cache_of`."""

    def __init__(self, spec: ModelSpec, serving: Serving, mesh: Mesh, blocks: int, new_matcher: NewMatcher):
        self.mesh = mesh
        chunk, place = load_chunk(serving.path, spec, serving.dtype, mesh)
        native = load() if mesh.device.type == "cpu" else None
        capacity = Capacity(serving.max_tokens, serving.max_rows, serving.max_context, serving.threads)
        cache, heads = cache_of(serving), heads_of(spec, place.tp.size, place.tp.rank)
        sizes = Sizes(capacity.tokens, spec.hidden, capacity.rows, spec.vocab)
        rows = capacity.rows if chunk.head is not None else 0
        stripes = StripedSizes(capacity.tokens, heads.count, heads.dim, rows, spec.vocab, place.dtype)
        together = Together(
            share(place.tp, native, sizes, serving.timeout_s), share_stripes(place.cp, native, stripes, serving.timeout_s)
        )
        self._caches = make_cache(cache, heads, len(chunk.blocks), blocks, mesh.device)
        self._chunk = LoweredChunk(chunk, spec, place, self._caches, capacity, native, together)
        self._striping = Striping(serving.block, place.cp.size, place.cp.rank) if place.cp.size > 1 else None
        self._window = spec.window
        self._stage, self._last = mesh.coord.pp, mesh.layout.pp - 1
        self._received = None if not self._stage else torch.empty(capacity.tokens, spec.hidden, dtype=place.dtype, device=mesh.device)
        self._sends: deque[tuple[Wait, Tensor]] = deque()
        self._sampler = Sampler(spec.vocab, new_matcher) if mesh.rank == drawing_rank(mesh) else None

    @property
    def draws(self) -> bool:
        """Whether this rank draws the tokens."""
        return self._sampler is not None

    def run(self, step: StepArrays) -> list[Sampled]:
        """Do this rank's part; returns what was drawn, on the rank that draws."""
        for cache in self._caches if len(step.copies) else ():
            _copy_blocks(cache, step)
        paged = _paged(step) if self._striping is None else self._striping.part(_paged(step), self._window)
        x = self._before(len(paged.tokens), step.number)
        with self.mesh.clock.phase("forward"):
            out = self._chunk.forward(paged, x)
            if self._stage < self._last:
                self._send(out, step.number)
                return []
            logits = out if self._striping is None else self._all_logits(paged)
            if self._sampler is None:
                return []
            assert logits is not None, "the rank that draws has all rows of a step, be it none, and so its notes"
            return self._drawn(logits, step)

    def _all_logits(self, paged: PagedStep) -> Tensor | None:
        """On the rank that draws, of all cp ranks; the others of its tp rank give theirs."""
        return self._chunk.all_logits(paged, self.draws) if self.mesh.tp.rank == 0 else None

    def _before(self, tokens: int, number: int) -> Tensor | None:
        """The residual stream from the stage before."""
        if self._received is None:
            return None
        x = self._received[:tokens]
        if tokens:
            self.mesh.pp.start_recv(x, self._stage - 1, number % TAGS)()
        return x

    def _send(self, x: Tensor, number: int) -> None:
        """To the next stage, which may still be busy; a copy, for the next step writes over it."""
        if not len(x):
            return
        x = x.contiguous() if not x.is_contiguous() else x.clone()
        self._sends.append((self.mesh.pp.start_send(x, self._stage + 1, number % TAGS), x))
        while len(self._sends) > self._last:
            self._sends.popleft()[0]()

    def _drawn(self, logits: Tensor, step: StepArrays) -> list[Sampled]:
        assert self._sampler is not None
        if step.notes:
            notes = decode(step.notes)
            self._sampler.forget(notes.ended)
            self._sampler.admit(notes.admissions)
        return self._sampler.sample(logits.cpu(), _due(step)) if len(step.rows) else []


def drawing_rank(mesh: Mesh) -> int:
    """The rank that draws tokens: of the last stage, the first."""
    layout = mesh.layout
    return next(r for r in range(layout.size) if layout.coord(r).pp == layout.pp - 1)


def cache_of(serving: Serving) -> CacheSpec:
    """How keys and values are kept."""
    return cache_spec(serving.kv_dtype, serving.block, DTYPES[serving.dtype])


def block_bytes(spec: ModelSpec, serving: Serving, mesh: Mesh) -> int:
    """Of one block on this rank."""
    layers = len(mesh.layout.layers_of_chunk(mesh.coord.pp))
    return cache_of(serving).block_bytes(heads_of(spec, mesh.tp.size, mesh.tp.rank), layers)


def agreed(mesh: Mesh, number: int) -> int:
    """The least of what the ranks say."""
    if mesh.layout.size == 1:
        return number
    return -int(mesh.world.all_reduce(torch.tensor([-number], device=mesh.device), "max").item())


def _copy_blocks(cache: LayerCache, step: StepArrays) -> None:
    source, destination = torch.from_numpy(step.copies.astype("int64")).unbind(1)
    for tensor in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
        if tensor is not None:
            tensor[destination] = tensor[source]


def _paged(step: StepArrays) -> PagedStep:
    tokens, positions, slots, rows = map(torch.from_numpy, (step.tokens, step.positions, step.slots, step.rows))
    starts, lengths, tables = map(torch.from_numpy, (step.starts, step.lengths, step.tables))
    return PagedStep(tokens, positions, slots, starts, lengths, tables, rows)


def _due(step: StepArrays) -> list[Due]:
    """Sequences whose rows of logits are in the step, with their drafts: the tokens at those rows but the first."""
    out, taken = [], 0
    ends, rows = step.starts[1:].tolist(), step.rows.tolist()
    for number, end, drafts in zip(step.ids.tolist(), ends, step.num_drafts.tolist(), strict=True):
        if taken < len(rows) and rows[taken] == end - 1 - drafts:
            out.append(Due(number, tuple(step.tokens[end - drafts : end].tolist()) if drafts else ()))
            taken += 1 + drafts
    return out
