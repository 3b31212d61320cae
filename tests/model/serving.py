"""Models with random weights as they serve: steps over sequences, on ranks that are threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from rayplane.comm.mesh import Mesh
from rayplane.kernels.native import Native
from rayplane.kernels.shared import Sizes
from rayplane.kernels.striped import StripedSizes
from rayplane.model.cache import cache_spec, heads_of, make_cache
from rayplane.model.layers import Place
from rayplane.model.lowered import Capacity, LoweredChunk
from rayplane.model.paged import PagedStep
from rayplane.model.parameter import GradWork
from rayplane.model.shared import Together, share, share_stripes
from rayplane.model.striping import Striping
from rayplane.model.transformer import ModelChunk
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.model import ModelSpec

Tensor = torch.Tensor
Work = Sequence[tuple[int, int]]
"""(sequence, how many of its tokens are next) of a step."""


@dataclass
class Sequences:
    """Tokens of some sequences, where they are kept, and how many of each are known to the model."""

    tokens: list[list[int]]
    block: int
    blocks: int
    known: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = [0] * len(self.tokens)
        order = torch.randperm(self.blocks, generator=torch.Generator().manual_seed(5)).tolist()
        self.tables = [[order.pop() for _ in range(-(-len(t) // self.block))] for t in self.tokens]

    def step(self, work: Work, all_rows: bool = True) -> PagedStep:
        """The next tokens of some sequences."""
        tokens, positions, slots, starts = [], [], [], [0]
        for n, count in work:
            for at in range(self.known[n], self.known[n] + count):
                tokens.append(self.tokens[n][at])
                positions.append(at)
                slots.append(self.tables[n][at // self.block] * self.block + at % self.block)
            self.known[n] += count
            starts.append(len(tokens))
        width = max(len(t) for t in self.tables)
        tables = torch.full((len(work), width), -1, dtype=torch.int32)
        for i, (n, _) in enumerate(work):
            tables[i, : len(self.tables[n])] = torch.tensor(self.tables[n])
        rows = list(range(len(tokens))) if all_rows else [s - 1 for s in starts[1:]]
        lengths = torch.tensor([self.known[n] for n, _ in work], dtype=torch.int32)
        ints = (torch.tensor(x) for x in (tokens, positions, slots))
        return PagedStep(*ints, torch.tensor(starts, dtype=torch.int32), lengths, tables, torch.tensor(rows))


def random_tensors(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    """Whole tensors, norms and biases random too."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for t in spec.tensors():
        noise = torch.randn(t.shape, generator=generator)
        out[t.name] = noise * (spec.init_std if t.init_std else 0.1) + (1.0 if "norm" in t.name and "bias" not in t.name else 0.0)
    return out


def build(spec: ModelSpec, tensors: dict[str, Tensor], mesh: Mesh, dtype: torch.dtype = torch.float32) -> tuple[ModelChunk, Place]:
    """A rank's part for training."""
    stage, layout = mesh.coord.pp, mesh.layout
    place = Place(mesh.tp, mesh.cp, GradWork(defer=False), dtype)
    chunk = ModelChunk(place, spec, layout.layers_of_chunk(stage), stage == 0, stage == layout.pp - 1)
    for weight in chunk.weights():
        for part, view in weight.views(weight.data):
            view.copy_(tensors[part.tensor.name][part.chunk.slices])
    return chunk, place


@dataclass(frozen=True)
class Setup:
    """How a rank serves."""

    kv: str = "auto"
    block: int = 4
    blocks: int = 64
    threads: int = 1
    share: bool = True


def lower(spec: ModelSpec, chunk: ModelChunk, place: Place, native: Native | None, setup: Setup, capacity: Capacity) -> LoweredChunk:
    """The serving form, which takes the chunk's weights."""
    heads = heads_of(spec, place.tp.size, place.tp.rank)
    caches = make_cache(cache_spec(setup.kv, setup.block, place.dtype), heads, len(chunk.blocks), setup.blocks)
    sizes = Sizes(capacity.tokens, spec.hidden, capacity.rows, spec.vocab)
    striped = StripedSizes(capacity.tokens, heads.count, heads.dim, capacity.rows, spec.vocab, place.dtype)
    together = Together(share(place.tp, native, sizes, 20.0), share_stripes(place.cp, native, striped, 20.0))
    return LoweredChunk(chunk, spec, place, caches, capacity, native, together if setup.share else Together())


def run_steps(
    spec: ModelSpec,
    tensors: dict[str, Tensor],
    mesh: Mesh,
    steps: Sequence[PagedStep],
    native: Native | None,
    setup: Setup,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor | None]:
    """Logits of each step on the last stage. Over cp the blocks of `steps` are `cp` times those of the setup."""
    chunk, place = build(spec, tensors, mesh, dtype)
    most = max(s.tokens.shape[0] for s in steps)
    capacity = Capacity(most, max(s.rows.shape[0] for s in steps), 64, setup.threads)
    served, out = lower(spec, chunk, place, native, setup, capacity), []
    striping = Striping(setup.block, mesh.layout.cp, mesh.coord.cp) if mesh.layout.cp > 1 else None
    for tag, step in enumerate(steps):
        x = None
        step = step if striping is None else striping.part(step, spec.window)
        if mesh.coord.pp:
            x = torch.empty(step.tokens.shape[0], spec.hidden, dtype=dtype)
            if len(x):
                mesh.pp.start_recv(x, mesh.coord.pp - 1, tag)()
        y = served.forward(step, x).clone()
        if served.logits is None and len(y):
            mesh.pp.start_send(y, mesh.coord.pp + 1, tag)()
        y = y if served.logits is None or striping is None else served.all_logits(step)
        out.append(None if served.logits is None else y)
    return out


def cut(spec: ModelSpec, layout: Layout) -> Layout:
    """The layout with as many layers on each stage."""
    return replace(layout, boundaries=even_boundaries(spec.layers, layout.num_chunks))
