"""A sharding is one function: which part of a global tensor does the rank at some coordinates hold?

`chunk_of(tensor, layout, coord)` answers for initialisation, loading, saving, resuming under another layout and the planner's memory.
Dims are cut over tp in units (a head, a KV group, a vocabulary row), unevenly when they do not divide:

    9 heads of 64 over tp 2             q rows    [0, 320) and [320, 576)
    3 KV heads, 3 query heads each      k, v rows [0, 128) and [64, 192): KV head 1 is on both ranks, rank 0 owns it

`owned_of` is the same cut without the overlap: every element of the model belongs to exactly one (stage, tp) position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rayplane.spec.layout import Coord, Layout, split

EMBED = -1
"""`TensorSpec.layer` of what comes before the first layer (token embedding)."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One dim of a global tensor: `units` units of `unit` elements each.

    With `cut` it is split over tp by units. `group` > 1 makes it follow another dim that has `group` units for each of
    its own (KV heads follow query heads): the ranks hold every unit that their part of the other dim needs.
    """

    name: str
    units: int
    unit: int = 1
    group: int = 1
    cut: bool = True

    @property
    def size(self) -> int:
        """Elements of the whole dim."""
        return self.units * self.unit

    def span(self, tp: int, index: int) -> tuple[int, int]:
        """(first unit, number of units) that tp rank `index` holds."""
        if not self.cut:
            return 0, self.units
        offset, size = split(self.units * self.group, tp, index)
        first = offset // self.group
        return first, (math.ceil((offset + size) / self.group) - first) if size else 0

    def owned(self, tp: int, index: int) -> tuple[int, int]:
        """Like `span`, but a unit that several ranks hold counts for the first of them only; an uncut dim is rank 0's."""
        if not self.cut:
            return 0, self.units if index == 0 else 0
        first, size = self.span(tp, index)
        if index:
            before, held = self.span(tp, index - 1)
            first, size = max(first, before + held), first + size - max(first, before + held)
        return first, max(size, 0)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A global tensor of the model: its name, dims, the layer it belongs to and how it starts.

    `layer` is EMBED for the embedding, the number of layers for final norm and head. `init_std` 0 means "all ones" for
    a norm and "all zeros" for a bias. `decay`: whether weight decay applies.
    """

    name: str
    dims: tuple[Dim, ...]
    layer: int
    init_std: float
    decay: bool = True
    tied: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return tuple(d.size for d in self.dims)

    @property
    def numel(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a global tensor: offset and size per dim, in elements."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the box."""
        return math.prod(self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index into the global tensor."""
        return tuple(slice(o, o + s) for o, s in zip(self.offset, self.size, strict=True))

    def within(self, outer: Chunk) -> Chunk:
        """The same box, relative to the corner of `outer`."""
        return Chunk(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.size)

    def overlap(self, other: Chunk) -> Chunk | None:
        """The box common to both, or None."""
        low = tuple(max(a, b) for a, b in zip(self.offset, other.offset, strict=True))
        high = tuple(min(a + n, b + m) for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True))
        size = tuple(h - lo for lo, h in zip(low, high, strict=True))
        return Chunk(low, size) if all(s > 0 for s in size) else None


def chunks_holding(tensor: TensorSpec, layout: Layout) -> tuple[int, ...]:
    """Model chunks that hold (all tp parts of) a tensor; a tied embedding is held by the first and the last."""
    if tensor.layer == EMBED:
        last = layout.num_chunks - 1
        return (0, last) if tensor.tied and last else (0,)
    if tensor.layer >= layout.num_layers:
        return (layout.num_chunks - 1,)
    return (next(c for c in range(layout.num_chunks) if tensor.layer in layout.layers_of_chunk(c)),)


def chunk_of(tensor: TensorSpec, layout: Layout, coord: Coord) -> Chunk | None:
    """What the rank at `coord` holds of a tensor; None when its stage has no part of it."""
    if coord.pp not in {layout.stage_of_chunk(c) for c in chunks_holding(tensor, layout)}:
        return None
    return tp_chunk(tensor, layout.tp, coord.tp)


def owned_of(tensor: TensorSpec, layout: Layout, coord: Coord) -> Chunk | None:
    """The part of a tensor that the (pp, tp) position of `coord` owns; None when that is empty.

    Over all (pp, tp) these boxes cover the tensor exactly once: the norm of a gradient and a checkpoint are sums over them.
    """
    if coord.pp != layout.stage_of_chunk(chunks_holding(tensor, layout)[0]):
        return None
    return tp_owned(tensor, layout.tp, coord.tp)


def tp_chunk(tensor: TensorSpec, tp: int, index: int) -> Chunk:
    """The tp part of a tensor, whatever the stage."""
    spans = [d.span(tp, index) for d in tensor.dims]
    return _box(tensor, spans)


def tp_owned(tensor: TensorSpec, tp: int, index: int) -> Chunk | None:
    """The tp part of a tensor without what an earlier tp rank holds too; None when that is empty."""
    if not any(d.cut for d in tensor.dims):
        spans = [d.span(tp, index) for d in tensor.dims] if index == 0 else [(0, 0)]
    else:
        spans = [d.owned(tp, index) if d.cut else d.span(tp, index) for d in tensor.dims]
    return None if any(n == 0 for _, n in spans) else _box(tensor, spans)


def is_shared(tensor: TensorSpec, tp: int) -> bool:
    """Whether tp ranks hold elements of a cut tensor in common, each with a part of its gradient only."""
    return any(sum(d.span(tp, i)[1] for i in range(tp)) > d.units for d in tensor.dims if d.cut)


def _box(tensor: TensorSpec, spans: list[tuple[int, int]]) -> Chunk:
    offset = tuple(d.unit * first for d, (first, _) in zip(tensor.dims, spans, strict=True))
    return Chunk(offset, tuple(d.unit * count for d, (_, count) in zip(tensor.dims, spans, strict=True)))
