"""Which layouts there are to price, and why others are not among them.

    degrees     dp x pp x cp x tp = devices     each checked against batch, layers, heads and islands; cp, by ring, for long
                                                sequences only
    variants    x micro_batch                   divisors of a replica's samples and powers of two, up to 64
                x schedule and vpp              where pp > 1, up to 4 chunks a stage
                x sp where tp > 1
                x zero 0, 1 where dp > 1        and 3 without a pipe, where its gathering may hide behind more than zero 1's
                x shard, one island's ranks     where dp spans islands and zero is on
    leaner      more recomputation, more zero   of a variant that does not fit without

All devices are used unless no such layout is possible and fits; then, for every pp and tp, as many replicas as there is room for.
What the runtime does not execute (`spec.layout.unsupported`) is not among them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from rayplane.plan.machine.topology import Topology
from rayplane.spec.builders import BUILDERS
from rayplane.spec.layout import Layout, split, unsupported
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload

MAX_MICRO_BATCH = 64
"""Beyond this a microbatch fills any device; larger ones only cost memory."""
MAX_VPP = 4
SCHEDULES = tuple(name for name in BUILDERS if name != "zb-h2")
"""Those tried unasked. zb-h2, whose steps all wait for the norm of all gradients here, is no faster than zbv but for little models,
and takes half as much memory again."""
Ladder = list[Layout]
"""Layouts that differ in micro_batch alone, smallest first. A larger one needs no less memory: beyond one too large none is tried."""
RECOMPUTE = ("none", "selective", "full")
"""Recomputation, by falling memory and rising time."""
MAX_ZERO = 3
LEAST_CP_TOKENS, SCARCE_CP_TOKENS = 8192, 4096
"""Of a shorter part attention is too little to hide a hop behind, and dp, which cuts as well, sends less. Where there are fewer samples
than devices, dp and pp have not enough microbatches between them, and shorter parts are worth their hops."""


@dataclass(frozen=True, slots=True)
class Space:
    """What bounds the search."""

    model: ModelSpec
    workload: Workload
    topology: Topology
    num_devices: int

    @property
    def max_tp(self) -> int:
        """The smallest thing that tp cuts."""
        return min(self.model.heads, self.model.mlp, self.model.vocab)

    @property
    def max_cp(self) -> int:
        """Parts of a sequence that are still long enough to be worth it."""
        scarce = self.workload.global_batch < self.num_devices
        return max(1, self.workload.seq_len // (SCARCE_CP_TOKENS if scarce else LEAST_CP_TOKENS))


def using_all(space: Space) -> tuple[list[Layout], array[int]]:
    """Degrees that use every device: those possible, and those refused, of these the four numbers each."""
    possible, refused = [], array("Q")
    for pp, cp, tp in _factors(space.num_devices, space.max_cp):
        layout = Layout(dp=space.num_devices // (pp * cp * tp), pp=pp, cp=cp, tp=tp)
        if refusal(space, layout):
            refused.extend((layout.dp, pp, cp, tp))
        else:
            possible.append(layout)
    return possible, refused


def using_fewer(space: Space) -> list[Layout]:
    """Degrees that leave devices idle, with as many replicas as each pp and tp allow."""
    out = []
    for pp in range(1, min(space.model.layers, space.num_devices) + 1):
        for cp, tp in product(_powers(space.max_cp), range(1, min(space.max_tp, space.topology.largest) + 1)):
            dp = min(space.topology.groups(tp) // (pp * cp), space.workload.global_batch)
            if dp and dp * pp * cp * tp < space.num_devices:
                out.append(Layout(dp=dp, pp=pp, cp=cp, tp=tp))
    return out


def refusal(space: Space, layout: Layout) -> str | None:
    """Why degrees are not tried."""
    return impossible(space, layout) or outside(space, layout)


def impossible(space: Space, layout: Layout) -> str | None:
    """Why no cluster could run these degrees for this model and batch."""
    model, batch = space.model, space.workload.global_batch
    if layout.dp > batch:
        return f"dp {layout.dp} needs {layout.dp} samples per step; global_batch is {batch}"
    if layout.pp > model.layers:
        return f"pp {layout.pp} has more stages than the model has layers ({model.layers})"
    if layout.tp > space.max_tp:
        return f"tp {layout.tp} leaves ranks without a head; the model has {model.heads} heads"
    return None


def outside(space: Space, layout: Layout) -> str | None:
    """Why the tp groups cannot all lie inside islands."""
    if layout.tp > space.topology.largest:
        return f"tp {layout.tp} needs {layout.tp} devices in one island; the largest has {space.topology.largest}"
    groups = layout.dp * layout.pp * layout.cp
    if (room := space.topology.groups(layout.tp)) < groups:
        return f"{groups} groups of tp {layout.tp} need an island's links each; the islands have room for {room}"
    return None if space.topology.tp_group(layout).inside else f"tp {layout.tp} would leave its island where cp {layout.cp} spans two"


def unequal(layout: Layout, global_batch: int) -> str | None:
    """Why replicas cannot have equally many microbatches, which zero 2 and 3 need."""
    if layout.zero < 2 or layout.micro_batch > 1 or global_batch % layout.dp == 0:
        return None
    return f"zero {layout.zero} with micro_batch 1 needs a global_batch that dp {layout.dp} divides; it is {global_batch}"


def variants(space: Space, degrees: Layout) -> list[Ladder]:
    """Every schedule, vpp, sp, zero and shard for some degrees, without recomputation, each with every micro_batch."""
    num_chunks = [v for v in range(1, MAX_VPP + 1) if degrees.pp * v <= space.model.layers]
    runs = product(SCHEDULES, num_chunks) if degrees.pp > 1 else (("1f1b", 1),)
    # Neighbours share what a microbatch takes, which sp changes.
    kinds = [
        degrees.but(schedule=name, vpp=v, sp=sp, zero=zero, shard=shard)
        for sp, (name, v), (zero, shard) in product((False, True) if degrees.tp > 1 else (False,), runs, _zeros(space, degrees))
    ]
    batch = space.workload.global_batch
    sizes = micro_batches(split(batch, degrees.dp, 0)[1])
    ladders = ([kind.but(micro_batch=n) for n in sizes] for kind in kinds if not unsupported(kind))
    possible = ([layout for layout in ladder if not unequal(layout, batch)] for ladder in ladders)
    return [ladder for ladder in possible if ladder]


def _zeros(space: Space, degrees: Layout) -> list[tuple[int, int]]:
    """(zero, shard) to begin with."""
    if degrees.dp * degrees.cp == 1:
        return [(0, 0)]
    group = space.topology.dp_group(degrees)
    spans = 1 < group.per_island < group.size and group.size % group.per_island == 0
    shards = (0, group.per_island) if spans else (0,)
    return [(0, 0), *product((1, MAX_ZERO) if degrees.pp == 1 else (1,), shards)]


def leaner(layout: Layout, global_batch: int) -> list[Layout]:
    """The same with more recomputation, and with more of zero; without zero, where it could be on, nothing: zero 1 is tried anyway."""
    replicas = layout.dp * layout.cp
    if replicas > 1 and not layout.zero:
        return []
    out = []
    if layout.recompute_layers:
        out.append(layout.but(recompute_layers=0))
    elif layout.recompute != RECOMPUTE[-1]:
        out.append(layout.but(recompute=RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1]))
    if replicas > 1 and layout.zero < MAX_ZERO:
        out.append(layout.but(zero=layout.zero + 1))
    return [x for x in out if not unsupported(x) and not unequal(x, global_batch)]


def micro_batches(samples: int) -> list[int]:
    """Sizes worth trying for a replica with so many samples."""
    limit = min(samples, MAX_MICRO_BATCH)
    return [n for n in range(1, limit + 1) if samples % n == 0 or n & (n - 1) == 0]


def _powers(limit: int) -> list[int]:
    """Powers of two up to a limit."""
    return [1 << i for i in range(limit.bit_length())]


def _factors(num_devices: int, max_cp: int) -> Iterator[tuple[int, int, int]]:
    """(pp, cp, tp) whose product divides the number of devices; cp is a power of two."""
    divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
    for pp, cp, tp in product(divisors, _powers(max_cp), divisors):
        if num_devices % (pp * cp * tp) == 0:
            yield pp, cp, tp
