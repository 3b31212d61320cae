"""What to tell whose layout, or whose model, does not fit: what is missing, and what was tried and found to be enough.

the layout     one change that is enough: micro_batch, recompute, zero, sp, offload; or, where none is, all of them together
the cluster    the fewest nodes like these on which some layout fits; the least memory of a device; offload; a shorter sequence
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice, product

from rayplane.plan.choice import pinned
from rayplane.plan.choice.candidates import RECOMPUTE, Space, impossible, unequal
from rayplane.plan.choice.remedy import shortage
from rayplane.plan.machine.catalog import at_least
from rayplane.plan.step.draft import Outline
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec, Node
from rayplane.spec.layout import Layout, unsupported
from rayplane.spec.plan import Candidate

MOST_NODES = 64
"""A larger cluster is looked for up to so many nodes, or eight times what there is."""
LEAST_SEQ_LEN = 256
OFFLOAD = "train.optimizer.offload: true"


def given_too_large(pricer: Pricer, space: Space, closest: Outline, others: Sequence[Candidate]) -> str:
    """Of a layout that the job gives; `others` are those that do fit."""
    lack = shortage(pricer.counted(closest))
    enough = changes(pricer, space, closest.layout)
    ways = f". It would fit with {_or(enough)}" if enough else ""
    if not others:
        larger = "" if enough else _larger(pricer, space)
        return f"the layout does not fit, nor does any other as it is: {lack}{ways}{larger}"
    near = min(others, key=lambda c: pinned.distance(c.layout, closest.layout))
    return f"the layout does not fit: {lack}{ways}. Nearest that fits: {near.layout}"


def none_fits(pricer: Pricer, space: Space, closest: Outline) -> str:
    """Of a model for which the cluster is too small."""
    return f"no layout fits this cluster. The closest, {shortage(pricer.counted(closest))}{_larger(pricer, space)}"


def changes(pricer: Pricer, space: Space, layout: Layout) -> list[str]:
    """Single changes that are enough, as a job says them; else one that makes them all."""
    away = _away(pricer)
    found = [_said(layout, tried) for tried in _singly(layout) if _fits(pricer, space, tried)]
    if away and _fits(away, space, layout):
        found.append(OFFLOAD)
    if found:
        return found
    all_on = _leanest(layout)
    for of, more in ((pricer, []), (away, [OFFLOAD])):
        if of and _fits(of, space, all_on):
            return [" and ".join([*filter(None, [_said(layout, all_on)]), *more])]
    return []


def growth(pricer: Pricer, space: Space) -> list[str]:
    """Changes of cluster and job with which some layout fits."""
    found = []
    if count := _nodes(pricer):
        grown = _grown(pricer.cluster, count)
        found.append(f"on {grown.num_devices} devices ({count} nodes like these)")
    need = min(pricer.counted(pricer.outline(x)).memory_bytes for x in _lean(space))
    kinds = at_least(need, but=pricer.device.name)
    found.append(f"on devices of {gigabytes(need)}" + (f" (such as {kinds[0]})" if kinds else ""))
    away = _away(pricer)
    if away and _any_fits(away, space):
        found.append(f"with {OFFLOAD}")
    if shorter := _seq_len(pricer, space):
        found.append(f"with train.data.seq_len: {shorter}")
    return found


def _larger(pricer: Pricer, space: Space) -> str:
    return f". The model would fit {_or(growth(pricer, space))}"


def _or(ways: Sequence[str]) -> str:
    return ", or ".join([", ".join(ways[:-1]), ways[-1]] if len(ways) > 1 else ways)


def _singly(layout: Layout) -> Iterator[Layout]:
    """Of each option the smallest step that may be enough comes first; of those that fit the rest is left out by `changes`."""
    smaller = layout.micro_batch // 2
    while smaller:
        yield replace(layout, micro_batch=smaller)
        smaller //= 2
    for recompute in RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1 :]:
        yield replace(layout, recompute=recompute)
    if layout.recompute_layers:
        yield replace(layout, recompute_layers=0)
    if layout.dp * layout.cp > 1:
        for zero in range(layout.zero + 1, 4):
            yield replace(layout, zero=zero)
    if layout.tp > 1 and not layout.sp:
        yield replace(layout, sp=True)


def _leanest(layout: Layout) -> Layout:
    """With everything on that saves memory and moves no device."""
    zero = 3 if layout.dp * layout.cp > 1 else 0
    return replace(layout, micro_batch=1, recompute="full", recompute_layers=0, zero=zero, sp=layout.tp > 1)


def _said(layout: Layout, other: Layout) -> str:
    """What differs, as in a job file."""
    names = ("micro_batch", "recompute", "recompute_layers", "zero", "sp")
    values = [(name, getattr(other, name)) for name in names if getattr(layout, name) != getattr(other, name)]
    return " and ".join(f"{name}: {'true' if value is True else value}" for name, value in values)


def _fits(pricer: Pricer, space: Space, layout: Layout) -> bool:
    if unsupported(layout) or unequal(layout, space.workload.global_batch):
        return False
    outline = pricer.outline(replace(layout, boundaries=()))
    return outline.memory_bytes <= pricer.device_bytes and pricer.counted(outline).memory_bytes <= pricer.device_bytes


def _away(pricer: Pricer) -> Pricer | None:
    """With the optimizer's state on the host, where that is another memory."""
    if pricer.workload.offload or pricer.device.is_host:
        return None
    return Pricer(pricer.model, replace(pricer.workload, offload=True), pricer.cluster, pricer.practice)


def _lean(space: Space) -> Iterator[Layout]:
    """Layouts over a cluster that need as little memory as there can be: one of them does if any does."""
    batch, tps = space.workload.global_batch, range(1, min(space.topology.largest, space.max_tp) + 1)
    powers = [1 << i for i in range(space.model.layers.bit_length())]
    for pp, tp in product(sorted({*powers, space.model.layers}), tps):
        room = min(batch, space.num_devices // (pp * tp))
        if dp := max((d for d in range(1, room + 1) if batch % d == 0), default=0):
            layout = _leanest(Layout(dp=dp, pp=pp, tp=tp))
            if not impossible(space, layout):
                yield layout


def _any_fits(pricer: Pricer, space: Space) -> bool:
    return any(_fits(pricer, space, layout) for layout in _lean(space))


def _nodes(pricer: Pricer) -> int:
    """The fewest nodes that hold some layout; 0 when many more do not."""
    have = len(pricer.cluster.nodes)
    low, high = have, have
    while not _fits_on(pricer, high):
        low, high = high, 2 * high
        if high > max(MOST_NODES, 8 * have):
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits_on(pricer, middle) else (middle, high)
    return high if high > have else 0


def _fits_on(pricer: Pricer, count: int) -> bool:
    grown = Pricer(pricer.model, pricer.workload, _grown(pricer.cluster, count), pricer.practice)
    return _any_fits(grown, Space(grown.model, grown.workload, grown.topology, grown.cluster.num_devices))


def _grown(cluster: ClusterSpec, count: int) -> ClusterSpec:
    """With so many nodes, the new ones like those there are, each an island of its own."""
    new = [_copy(node, i) for i, node in enumerate(islice(cycle(cluster.nodes), count - len(cluster.nodes)))]
    return replace(cluster, nodes=(*cluster.nodes, *new))


def _copy(node: Node, index: int) -> Node:
    return replace(node, name=f"{node.name}+{index}", island=f"{node.island}+{index}")


def _seq_len(pricer: Pricer, space: Space) -> int:
    """The longest half, quarter, … of the sequence with which some layout fits; 0 when none does."""
    seq_len = pricer.workload.seq_len // 2
    while seq_len >= LEAST_SEQ_LEN:
        work = replace(pricer.workload, seq_len=seq_len)
        if _any_fits(Pricer(pricer.model, work, pricer.cluster, pricer.practice), replace(space, workload=work)):
            return seq_len
        seq_len //= 2
    return 0
