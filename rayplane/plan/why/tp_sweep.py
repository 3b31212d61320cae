"""One microbatch through one replica, by tp: where more ranks stop to pay, and why.

seconds(tp) = compute / tp, less as products get narrow  +  4 sums a layer that do not shrink
                                                          └─ over the fabric once tp is larger than an island
"""

from __future__ import annotations

from dataclasses import replace

from rayplane.plan.choice.report import seconds
from rayplane.plan.why.explanation import Point, Sweep
from rayplane.plan.why.points import powers
from rayplane.plan.why.study import Study
from rayplane.spec.layout import Layout

BEYOND = 4
"""Islands' worth of devices up to which tp is tried, though no search would."""
LITTLE = 0.1
"""A doubling that saves less than this share is not worth its devices."""


def tp_sweep(of: Study) -> Sweep:
    """The winner's microbatch, its layers all on one stage."""
    limit = min(of.max_tp, BEYOND * of.pricer.topology.largest)
    degrees = sorted({*powers(limit), of.layout.tp} - {0})
    points = tuple(_point(of, tp) for tp in degrees if tp <= limit)
    tokens = of.layout.micro_batch * of.workload.seq_len // of.layout.cp
    question = f"How long does a microbatch of {tokens:,} tokens take, forward and backward, by tp?"
    return Sweep("tp", question, "tp", points, _finding(of, points), y_name="microbatch")


def _point(of: Study, tp: int) -> Point:
    """With or without sp, whichever is quicker."""
    plain = Layout(cp=of.layout.cp, cp_method=of.layout.cp_method, tp=tp, micro_batch=of.layout.micro_batch)
    tried = [replace(plain, sp=sp) for sp in ((False, True) if tp > 1 else (False,))]
    terms, layout = min(((_terms(of, layout), layout) for layout in tried), key=lambda t: sum(t[0].values()))
    note = "" if of.pricer.topology.tp_group(layout).inside else "leaves the island"
    return Point(tp, f"tp {tp}", layout, sum(terms.values()), tuple(terms.items()), None, None, note)


def _terms(of: Study, layout: Layout) -> dict[str, float]:
    _, parts = of.pricer.microbatch(layout)
    whole = parts.chunk(of.model.layers, 0, True, True)
    return {"compute": whole.compute.total, "tp": whole.tp.total, "cp": whole.cp.total}


def _finding(of: Study, points: tuple[Point, ...]) -> str:
    took = {int(p.x): p.step_s or 0.0 for p in points}
    best = turning(points)
    if len(points) == 1:
        return f"the model has nothing that tp could cut further than {best}"
    text = f"tp pays up to {best}: {seconds(took[best])} instead of {seconds(took[1])}"
    if best > 1:
        text += f", {took[1] / took[best]:.1f} times as fast on {best} devices"
        inside = max(tp for tp in took if tp <= of.pricer.topology.largest)
        text += f" (tp {inside}, a whole island, keeps {took[1] / took[inside] / inside:.0%} of its speed)" if 1 < inside < best else ""
    beyond = next((p for p in points if p.x > best), None)
    if beyond is None or beyond.step_s is None:
        return f"{text}; more ranks than {int(points[-1].x)} were not tried"
    spent = dict(beyond.terms)["tp"] / beyond.step_s
    change = f"{beyond.step_s / took[best] - 1:+.0%}"
    where = "its collectives leave the island" if beyond.note else "its collectives do not shrink"
    return f"{text}; at {int(beyond.x)} {where}: {seconds(beyond.step_s)} ({change}), {spent:.0%} of it tp"


def turning(points: tuple[Point, ...]) -> int:
    """The last tp that still saves enough over the one before it."""
    best = points[0]
    for p in points[1:]:
        if (p.step_s or 0.0) > (1 - LITTLE) * (best.step_s or 0.0):
            break
        best = p
    return int(best.x)
