"""Why a plan is as it is, as values: what `rayplane explain` prints, and what its page draws.

Explanation ──┬── waterfalls    the winner and its runners-up, term by term; each with why it lost
              ├── axes          tp, sp, cp, dp, p2p: bytes from the shapes, the link that binds, what compute hides
              ├── sweeps        one number changed at a time: tp, dp against tp, microbatches, vpp, cp against tp
              ├── stages        memory by stage and term
              ├── timeline      the simulated step
              ├── what_ifs      another cluster, another best layout
              └── answers       the questions of docs/parallelism.md for this model on this cluster
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rayplane.plan.step.timeline import Timeline
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A layout's step as terms that sum to it."""

    layout: Layout
    step_s: float
    terms: tuple[tuple[str, float], ...]
    """(term, seconds), in the order in which they are stacked."""
    memory_bytes: int
    verdict: str
    lost_because: str
    """Empty for the winner."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A collective, or a transfer, of an axis in one step, as one rank sees it."""

    what: str
    """Such as `all-reduce of a layer's output, forward`."""
    calls: float
    message_bytes: int
    """Of one call, before the factor of the algorithm."""
    sent_bytes: int
    """In all calls together, by one rank."""
    arithmetic: str
    """How both came about, in numbers: `2 x 4096 x 8192 x 2 B = 134 MB; 2N(p-1)/p = 235 MB`."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A mesh axis of more than one rank, and what binds it."""

    name: str
    size: int
    link: str
    """island, node or fabric."""
    gbytes_s: float
    """What a rank gets of that link while the whole group talks."""
    traffic: tuple[Traffic, ...]
    comm_s: float
    """Seconds a step of this axis's communication, alone."""
    exposed_s: float
    """Of these, what compute does not hide."""
    compute_s: float
    """Seconds of compute a step on the same rank."""
    bound: str
    """communication or compute: whichever of the two takes longer."""
    arithmetic: str
    """The comparison in numbers, and whether figures are measured, of the table or assumed."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a sweep."""

    x: float
    label: str
    layout: Layout | None
    step_s: float | None
    """None where there is no such layout, or none that fits; `note` says why."""
    terms: tuple[tuple[str, float], ...]
    bubble: float | None
    memory_bytes: int | None
    note: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """One number changed, all else being best or alike, and what follows from it."""

    name: str
    """tp, dp-or-tp, microbatches, vpp, cp-or-tp, …"""
    question: str
    x_name: str
    points: tuple[Point, ...]
    finding: str
    """Such as `tp pays up to 8: at 16 its collectives leave the island`."""
    y_name: str = "step"
    """What `step_s` of its points is: of a whole step, or `microbatch`, of one through a replica."""


@dataclass(frozen=True, slots=True)
class StageShare:
    """A stage of the winner: its layers, its device, its seconds and its memory."""

    stage: int
    layers: tuple[int, ...]
    """By chunk."""
    kind: str
    compute_s: float
    """Of one microbatch, forward and backward."""
    memory: tuple[tuple[str, int], ...]
    """(term, bytes)."""
    memory_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change of the cluster, and what the planner would do then."""

    change: str
    """As it was asked: `nic=2x`."""
    meaning: str
    """`fabric 50 → 100 GB/s per device`."""
    same_layout_s: float | None
    """Step of the winner under that change; None when it no longer fits or can no longer run."""
    best: Layout | None
    best_s: float | None
    finding: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A question of docs/parallelism.md, answered with this plan's numbers."""

    number: int
    question: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All of it."""

    name: str
    """Of the job."""
    model: str
    cluster: str
    """Both in a line of words."""
    plan: Plan
    waterfalls: tuple[Waterfall, ...]
    axes: tuple[Axis, ...]
    sweeps: tuple[Sweep, ...]
    stages: tuple[StageShare, ...]
    timeline: Timeline
    what_ifs: tuple[WhatIf, ...]
    answers: tuple[Answer, ...]
    figures: str
    """Which figures are measured, of the table or assumed."""
    shown_microbatches: int = 0
    """So many of the step's microbatches are in the timeline, where all would be too many to draw."""


def as_object(explanation: Explanation) -> dict[str, Any]:
    """As plain data: of the plan what was chosen, without its placement and without what was refused; of the timeline its spans."""
    e, found = explanation, explanation.plan
    return {
        "name": e.name,
        "model": e.model,
        "cluster": e.cluster,
        "layout": asdict(found.layout),
        "layout_text": str(found.layout),
        "num_microbatches": found.num_microbatches,
        **asdict(found.estimate),
        "waterfalls": [_with_terms(w) for w in e.waterfalls],
        "axes": [asdict(a) for a in e.axes],
        "sweeps": [{**asdict(s), "points": [_with_terms(p) for p in s.points]} for s in e.sweeps],
        "stages": [{**asdict(s), "memory": dict(s.memory)} for s in e.stages],
        "timeline": [[[str(s.action), s.start_s, s.end_s] for s in spans] for spans in e.timeline.ranks],
        "shown_microbatches": e.shown_microbatches,
        "what_ifs": [asdict(w) for w in e.what_ifs],
        "answers": [asdict(a) for a in e.answers],
        "figures": e.figures,
    }


def _with_terms(of: Waterfall | Point) -> dict[str, Any]:
    return {**asdict(of), "layout_text": str(of.layout) if of.layout else "", "terms": dict(of.terms)}
