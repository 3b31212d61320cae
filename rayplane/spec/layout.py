"""A layout is a value: how many ways each mesh axis cuts the work, and the arithmetic between ranks and coordinates.

Ranks are numbered with the outermost axis first, so a TP group is always consecutive ranks:

    Layout(dp=2, pp=2, cp=1, tp=2)            rank = ((dp * PP + pp) * CP + cp) * TP + tp

               pp 0      pp 1
    dp 0     0   1     2   3        peers(0, "tp") = (0, 1)
    dp 1     4   5     6   7        peers(0, "pp") = (0, 2)      peers(0, "dp") = (0, 4)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Literal

Axis = Literal["dp", "pp", "cp", "tp"]
AXES: tuple[Axis, ...] = ("dp", "pp", "cp", "tp")


def split(total: int, parts: int, index: int) -> tuple[int, int]:
    """(offset, size) of piece `index` when `total` units are cut into `parts`; the first `total % parts` get one more.

    >>> [split(9, 2, i) for i in range(2)]
    [(0, 5), (5, 4)]
    """
    base, extra = divmod(total, parts)
    return index * base + min(index, extra), base + (index < extra)


def zigzag(seq_len: int, cp: int, index: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(offset, size) of the two parts of a sequence that a cp rank holds: of 2 cp chunks, one from each end, so that causal
    attention is the same work on every rank. With cp 1 they are the two halves, in order.

    >>> [zigzag(8, 2, r) for r in range(2)]
    [((0, 2), (6, 2)), ((2, 2), (4, 2))]
    """
    return split(seq_len, 2 * cp, index), split(seq_len, 2 * cp, 2 * cp - 1 - index)


def stage_of_chunk(schedule: str, num_stages: int, chunk: int) -> int:
    """The stage that holds a model chunk: round the stages, or down and up again (a V) under zbv.

    >>> [stage_of_chunk("interleaved", 2, c) for c in range(4)], [stage_of_chunk("zbv", 2, c) for c in range(4)]
    ([0, 1, 0, 1], [0, 1, 1, 0])
    """
    if schedule == "zbv":
        return min(chunk, 2 * num_stages - 1 - chunk)
    return chunk % num_stages


@dataclass(frozen=True, slots=True, order=True)
class Coord:
    """The position of one rank on the mesh axes."""

    dp: int = 0
    pp: int = 0
    cp: int = 0
    tp: int = 0


@dataclass(frozen=True)
class Layout:
    """Degree per mesh axis and how a step runs over them. Degrees are at least 1; a product of degrees is the rank count.

    `boundaries` are the numbers of layers of each model chunk (`pp * vpp` of them, in model order, zeros allowed);
    they may be uneven, for the stages are cut by cost. An empty tuple means "not cut yet".

    zero cuts over dp x cp: 1 the optimizer's state, 2 gradients too, 3 weights too. `shard` is over how many of those ranks
    (neighbours in rank order; the others hold copies), 0 all. `recompute_layers` is how many layers of each chunk, from its first on,
    are computed again, 0 all.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    sp: bool = False
    vpp: int = 1
    schedule: str = "1f1b"
    micro_batch: int = 1
    zero: int = 0
    shard: int = 0
    recompute: str = "none"
    recompute_layers: int = 0
    cp_method: str = "ring"
    boundaries: tuple[int, ...] = ()

    def but(self, **changes: Any) -> Layout:
        """The same with some fields changed; quicker than dataclasses.replace, for a search that does it ten thousand times."""
        out = object.__new__(Layout)
        out.__dict__.update({name: getattr(self, name) for name in Layout.__dataclass_fields__}, **changes)
        return out

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.cp * self.tp

    @property
    def shard_size(self) -> int:
        """Ranks over which zero cuts what dp x cp ranks hold alike; 1 without zero."""
        return (self.shard or self.dp * self.cp) if self.zero else 1

    @property
    def num_chunks(self) -> int:
        """Number of model chunks: `vpp` of them on each of the `pp` stages."""
        return self.pp * self.vpp

    def coord(self, rank: int) -> Coord:
        """Coordinates of a global rank."""
        rank, tp = divmod(rank, self.tp)
        rank, cp = divmod(rank, self.cp)
        dp, pp = divmod(rank, self.pp)
        return Coord(dp, pp, cp, tp)

    def rank(self, coord: Coord) -> int:
        """Global rank at some coordinates."""
        return ((coord.dp * self.pp + coord.pp) * self.cp + coord.cp) * self.tp + coord.tp

    def peers(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """Global ranks that differ from `rank` along `axis` only, in axis order, `rank` itself included."""
        stride = {"dp": self.pp * self.cp * self.tp, "pp": self.cp * self.tp, "cp": self.tp, "tp": 1}[axis]
        degree: int = getattr(self, axis)
        first = rank - getattr(self.coord(rank), axis) * stride
        return tuple(first + i * stride for i in range(degree))

    def stage_of_chunk(self, chunk: int) -> int:
        """The stage that holds a model chunk."""
        return stage_of_chunk(self.schedule, self.pp, chunk)

    def chunks_of_stage(self, stage: int) -> tuple[int, ...]:
        """Model chunks of a stage, in model order."""
        return tuple(c for c in range(self.num_chunks) if self.stage_of_chunk(c) == stage)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return (0, *accumulate(self.boundaries))

    @property
    def num_layers(self) -> int:
        """Layers of the model that this layout cuts (its boundaries must be set)."""
        return self._starts[-1]

    def layers_of_chunk(self, chunk: int) -> range:
        """Layer indices of a model chunk."""
        return range(self._starts[chunk], self._starts[chunk + 1])

    def microbatch_sizes(self, global_batch: int, dp: int) -> tuple[int, ...]:
        """Samples per microbatch of one replica; the last one may be smaller, and replicas may differ by a sample.

        Under zero 2 and 3 replicas meet in every microbatch, so all have equally many, of sizes that differ by a sample.
        """
        samples = split(global_batch, self.dp, dp)[1]
        if self.zero > 1:
            count = -(-split(global_batch, self.dp, 0)[1] // self.micro_batch)
            return tuple(split(samples, count, i)[1] for i in range(count))
        full, rest = divmod(samples, self.micro_batch)
        return (self.micro_batch,) * full + ((rest,) if rest else ())

    def num_microbatches(self, global_batch: int) -> int:
        """Microbatches per step of the busiest replica."""
        return len(self.microbatch_sizes(global_batch, 0))

    def __str__(self) -> str:
        degrees = " ".join(f"{axis}{getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1) or "1 device"
        marks = [self.schedule] if self.pp > 1 else []
        marks += [f"vpp{self.vpp}"] if self.vpp > 1 else []
        marks += ["sp"] if self.sp else []
        marks += [f"zero{self.zero}"] if self.zero else []
        marks += [f"shard{self.shard}"] if self.zero and self.shard else []
        layers = f" {self.recompute_layers}" if self.recompute_layers else ""
        marks += [f"recompute {self.recompute}{layers}"] if self.recompute != "none" else []
        cut = [_abridged(self.boundaries)] if self.pp > 1 and self.boundaries else []
        return " ".join([degrees, *marks, f"mb{self.micro_batch}", *cut])


def _abridged(boundaries: tuple[int, ...]) -> str:
    """Layers per chunk in words: `8+9+9+6`, and from three equal ones on `13x2+3+3+0`."""
    runs = [(layers, len(list(same))) for layers, same in groupby(boundaries)]
    return "+".join(f"{n}x{layers}" if n > 2 else "+".join([str(layers)] * n) for layers, n in runs)


def even_boundaries(num_layers: int, num_chunks: int) -> tuple[int, ...]:
    """Layers per chunk when they are cut by count; the first ones get the remainder."""
    return tuple(split(num_layers, num_chunks, c)[1] for c in range(num_chunks))


def unsupported(layout: Layout) -> list[tuple[str, str]]:
    """(field, reason) for what the training runtime does not execute."""
    problems = []
    if layout.sp and layout.tp == 1:
        problems.append(("sp", "sequence parallelism cuts activations over tp, which is 1; use sp: false, or tp: 2 or more"))
    if layout.schedule == "zbv" and layout.vpp != 2:
        problems.append(("vpp", f"{layout.vpp} does not fit schedule zbv, whose stages hold two chunks each; use vpp: 2"))
    elif layout.schedule == "interleaved" and layout.vpp < 2:
        problems.append(("vpp", "1 chunk per stage is not interleaved; use vpp: 2 or more, or schedule: 1f1b"))
    elif layout.schedule not in ("zbv", "interleaved") and layout.vpp > 1:
        problems.append(
            ("vpp", f"{layout.vpp} chunks per stage do not fit schedule {layout.schedule}; use schedule: interleaved or zbv")
        )
    ranks = layout.dp * layout.cp
    if layout.shard and not layout.zero:
        problems.append(("shard", f"{layout.shard} has nothing to cut without zero; use zero: 1, 2 or 3, or leave shard out"))
    elif layout.shard and ranks % layout.shard:
        problems.append(
            ("shard", f"{layout.shard} does not divide dp x cp = {layout.dp} x {layout.cp} ranks; use a divisor of {ranks}")
        )
    if layout.recompute_layers and layout.recompute == "none":
        message = f"{layout.recompute_layers} layers need to know what to compute again; use recompute: full or selective"
        problems.append(("recompute_layers", message))
    return problems
