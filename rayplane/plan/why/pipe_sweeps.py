"""What a pipeline idles, by its microbatches and by its schedule: the winner's pipe, or, where it has none, that of the best that has.

idle share of the pipe with equal stages     (p-1) / (m + p-1) under 1f1b, that is (p-1)/m on top of the work
                                             (p-1) / (v m + p-1) with v chunks a stage
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from rayplane.plan.choice.candidates import MAX_VPP, SCHEDULES
from rayplane.plan.choice.report import seconds
from rayplane.plan.why.explanation import Point, Sweep
from rayplane.plan.why.points import fastest, point, powers
from rayplane.plan.why.study import Study, fitted, lack, priced
from rayplane.spec.layout import Layout, unsupported
from rayplane.spec.plan import Candidate

MOST_MICROBATCHES = 64
"""Up to so many are tried, and as many as the step has."""
SMALL = 0.05
"""A bubble that is small enough."""


def pipe_of(of: Study) -> Candidate | None:
    """The fastest candidate with more than one stage; else two stages, where there are two devices and layers."""
    piped = [c for c in of.candidates if c.layout.pp > 1]
    if piped:
        return min(piped, key=lambda c: (c.layout != of.layout, c.estimate.step_s))
    used = of.layout.size
    return of.best([Layout(dp=used // 2, pp=2)]) if used % 2 == 0 and of.model.layers > 1 else None


def microbatch_sweep(of: Study) -> Sweep | None:
    """The same pipe and microbatch in larger and smaller steps."""
    pipe = pipe_of(of)
    if pipe is None:
        return None
    layout = pipe.layout
    asked = layout.num_microbatches(of.workload.global_batch)
    counts = sorted({*powers(MOST_MICROBATCHES), asked})
    points = tuple(_with(of, layout, m) for m in counts)
    question = f"What do the {layout.pp} stages of {layout} idle, by the microbatches of a step?"
    return Sweep("microbatches", question, "microbatches", points, _finding(layout, points, asked))


def _with(of: Study, layout: Layout, m: int) -> Point:
    workload = replace(of.workload, global_batch=m * layout.micro_batch * layout.dp)
    return point(of, m, f"m {m}", priced(of.pricer_for(workload), layout))


def _finding(layout: Layout, points: tuple[Point, ...], asked: int) -> str:
    p, v = layout.pp, layout.vpp
    bubbles = {int(q.x): q.bubble for q in points if q.bubble is not None}
    formula = f"equal stages would idle (p-1)/(vm+p-1) = {(p - 1) / (v * asked + p - 1):.1%}"
    text = f"with {asked} microbatches {p} stages idle {bubbles[asked]:.1%}; {formula}" if asked in bubbles else formula
    enough = next((m for m, bubble in bubbles.items() if bubble <= SMALL), None)
    if enough:
        return f"{text}; {enough} microbatches are enough for less than {SMALL:.0%}"
    most = max(bubbles, default=asked)
    uneven = ": stages are not equal" if (p - 1) / (v * most + p - 1) <= SMALL else ""
    return f"{text}; up to {most} microbatches it stays above {SMALL:.0%}{uneven}"


def schedule_sweep(of: Study) -> Sweep | None:
    """The same degrees and microbatch under every schedule."""
    pipe = pipe_of(of)
    if pipe is None:
        return None
    points = []
    for name, vpp in product(SCHEDULES, range(1, MAX_VPP + 1)):
        layout = replace(pipe.layout, schedule=name, vpp=vpp, boundaries=())
        if not unsupported(layout) and layout.num_chunks <= of.model.layers:
            points.append(_under(of, layout))
    question = f"Which schedule, and how many chunks a stage, for {pipe.layout.pp} stages?"
    return Sweep("vpp", question, "chunks a stage", tuple(points), _schedule_finding(tuple(points)))


def _under(of: Study, layout: Layout) -> Point:
    """As it is, or, where that does not fit, with other zero and recomputation."""
    label = layout.schedule + (f" vpp {layout.vpp}" if layout.vpp > 1 else "")
    as_it_is = priced(of.pricer, layout)
    reason = lack(as_it_is, of.pricer.device_bytes)
    other = fitted(of.pricer, layout) if reason else None
    if other is None:
        return point(of, layout.vpp, label, as_it_is)
    found = point(of, layout.vpp, label, other)
    marks = [f"zero {other.layout.zero}", f"recompute {other.layout.recompute}"]
    return replace(found, note="; ".join([*([found.note] if found.note else []), f"with {' and '.join(marks)}"]))


def _schedule_finding(points: tuple[Point, ...]) -> str:
    best = fastest(points)
    if best is None or best.step_s is None or best.bubble is None:
        return "none of them fits"
    plain = next(p for p in points if p.label == "1f1b")
    text = f"{best.label} is the fastest: {seconds(best.step_s)}, idle {best.bubble:.1%}"
    if best is plain:
        return text
    if plain.step_s is None or plain.bubble is None:
        return f"{text}; 1f1b {plain.note}"
    less = ((best.memory_bytes or 0) - (plain.memory_bytes or 0)) / 1e9
    memory = f", {less:.1f} GB less" if less > 0.05 else f", {-less:.1f} GB more" if less < -0.05 else ""
    return f"{text}; 1f1b {seconds(plain.step_s)}, idle {plain.bubble:.1%}{memory}{', ' + plain.note if plain.note else ''}"
