"""One number of the winner changed at a time, and what follows.

tp             one microbatch through a replica                    where collectives outgrow compute
dp-or-tp       all devices, as replicas or as tp                   the best of everything else
micro_batch    samples of a microbatch                             against memory and bubble
microbatches   of a step                                           bubble ~ (p-1)/m
vpp            every schedule of the same pipe                     bubble against memory
cp-or-tp       longer contexts, the sequence or the weights cut    which of them lasts
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.plan.choice.candidates import micro_batches, unequal
from rayplane.plan.choice.report import seconds
from rayplane.plan.why.context_sweep import context_sweep
from rayplane.plan.why.explanation import Point, Sweep
from rayplane.plan.why.pipe_sweeps import microbatch_sweep, schedule_sweep
from rayplane.plan.why.points import fastest, point, powers
from rayplane.plan.why.study import Study, priced
from rayplane.plan.why.tp_sweep import tp_sweep
from rayplane.spec.layout import Layout, split

LEAVES = "leaves the island, so the search leaves it out"


def sweeps(of: Study) -> tuple[Sweep, ...]:
    """All of them; those without a second point are left out."""
    found = (tp_sweep(of), dp_or_tp(of), micro_batch_sweep(of), microbatch_sweep(of), schedule_sweep(of), context_sweep(of))
    return tuple(s for s in found if s is not None and len(s.points) > 1)


def dp_or_tp(of: Study) -> Sweep:
    """The devices that the winner uses, by how many of them work on the same samples."""
    used = of.layout.size
    limit = min(of.max_tp, 2 * of.pricer.topology.largest, used)
    degrees = sorted({*(tp for tp in powers(limit) if used % tp == 0), of.layout.tp})
    points = tuple(_replicas(of, tp) for tp in degrees)
    return Sweep("dp-or-tp", f"{used} devices: more replicas, or more tp?", "tp", points, _dp_or_tp_finding(points))


def _replicas(of: Study, tp: int) -> Point:
    """The best step with so much tp; pp and cp as the search found them, else as the winner has them or nearby."""
    known = [c.layout for c in of.candidates if c.layout.tp == tp]
    used, layout = of.layout.size, of.layout
    depths = (layout.pp, 2 * layout.pp, layout.pp // 2, layout.pp * layout.tp // tp)
    cells = [(pp, layout.cp) for pp in depths if pp and used % (pp * layout.cp * tp) == 0]
    tried = known or [Layout(dp=used // (pp * cp * tp), pp=pp, cp=cp, tp=tp) for pp, cp in cells]
    best = of.best(tried)
    label = f"dp {best.layout.dp}, tp {tp}" + (f", pp {best.layout.pp}" if best.layout.pp > 1 else "") if best else f"tp {tp}"
    found = point(of, tp, label, best, f"no layout with tp {tp} on {used} devices fits")
    return replace(found, note=LEAVES) if tp > of.pricer.topology.largest and found.step_s is not None else found


def _dp_or_tp_finding(points: tuple[Point, ...]) -> str:
    best = fastest(tuple(p for p in points if p.note != LEAVES)) or fastest(points)
    assert best is not None and best.step_s is not None
    others = [p for p in points if p.step_s is not None and p is not best]
    text = f"{best.label} takes {seconds(best.step_s)} a step"
    if not others:
        return f"{text}; nothing else fits"
    told = "; ".join(f"{p.label}: {(p.step_s or 0.0) / best.step_s - 1:+.0%}{_where(p)}" for p in others)
    none = [p.label for p in points if p.step_s is None]
    refused = f"; {', '.join(none)}: not possible" if none else ""
    return f"{text}; {told}{refused}"


def _where(p: Point) -> str:
    return f" ({p.note})" if p.note else ""


def micro_batch_sweep(of: Study) -> Sweep:
    """The winner with other sizes of its microbatches."""
    batch, layout = of.workload.global_batch, of.layout
    sizes = [n for n in micro_batches(split(batch, layout.dp, 0)[1]) if n & (n - 1) == 0 or n == layout.micro_batch]
    cut = layout.boundaries if of.section and of.section.boundaries else ()
    tried = [replace(layout, micro_batch=n, boundaries=cut) for n in sizes]
    points = tuple(point(of, x.micro_batch, f"mb {x.micro_batch}", priced(of.pricer, x)) for x in tried if not unequal(x, batch))
    return Sweep("micro_batch", "How many samples to a microbatch?", "micro_batch", points, _size_finding(points))


def _size_finding(points: tuple[Point, ...]) -> str:
    best, large = fastest(points), next((p for p in points if p.step_s is None), None)
    if best is None or best.step_s is None:
        return "none fits"
    worst = max((p for p in points if p.step_s is not None), key=lambda p: p.step_s or 0.0)
    text = f"{best.label} is the fastest: {seconds(best.step_s)}"
    if worst is not best:
        text += f", against {seconds(worst.step_s or 0.0)} with {worst.label}"
    return f"{text}; {large.label} {large.note}" if large else text
