"""The winner and what came after it, as terms that sum to the step; each with the terms it lost by and what causes them.

winner       step = compute + tp + cp + p2p + bubble + dp + optimizer
runner-up    n% slower: the terms that make it so, the largest first, each with its cause; then those that it saves
             or tight: faster, but above the share of a device that a layout should take
"""

from __future__ import annotations

from rayplane.plan.choice.report import seconds
from rayplane.plan.step.memory import TIGHT, gigabytes
from rayplane.plan.why.explanation import Waterfall
from rayplane.plan.why.study import Study
from rayplane.spec.plan import Candidate

TERMS = ("compute", "tp", "cp", "p2p", "bubble", "dp", "optimizer")
"""In the order of stacking."""
NAMED = 0.15
"""A term is named that makes at least this share of the largest difference."""


def waterfalls(of: Study) -> tuple[Waterfall, ...]:
    """The winner first, then by their steps."""
    return tuple(waterfall(of, candidate) for candidate in of.candidates)


def waterfall(of: Study, candidate: Candidate) -> Waterfall:
    """One layout beside the winner."""
    e = candidate.estimate
    lost = "" if candidate.layout == of.layout else _lost_because(of, candidate)
    return Waterfall(candidate.layout, e.step_s, stacked(candidate), e.memory_bytes, e.verdict, lost)


def stacked(candidate: Candidate) -> tuple[tuple[str, float], ...]:
    """Seconds by term, in order."""
    return tuple((term, candidate.estimate.time_s[term]) for term in TERMS)


def _lost_because(of: Study, candidate: Candidate) -> str:
    ours, theirs = of.plan.estimate, candidate.estimate
    if theirs.step_s < ours.step_s and theirs.verdict != ours.verdict:
        capacity = of.pricer.device_bytes
        needs = f"{gigabytes(theirs.memory_bytes)} are above {TIGHT:.0%} of a device's {gigabytes(capacity)}"
        return f"tight: {needs}, though its step takes {seconds(ours.step_s - theirs.step_s)} less"
    deltas = {term: theirs.time_s[term] - ours.time_s[term] for term in TERMS}
    largest = max(map(abs, deltas.values()))
    named = sorted((t for t in TERMS if abs(deltas[t]) >= NAMED * largest > 0), key=lambda t: -deltas[t])
    parts = [_part(of, candidate, term, deltas[term]) for term in named]
    return f"{theirs.step_s / ours.step_s - 1:.1%} slower: {', '.join(parts)}" if parts else "takes the same time, is less simple"


def _part(of: Study, candidate: Candidate, term: str, delta_s: float) -> str:
    text = f"{term} {'+' if delta_s > 0 else '-'}{seconds(abs(delta_s))}"
    cause = _cause(of, candidate, term) if delta_s > 0 else ""
    return f"{text} ({cause})" if cause else text


def _cause(of: Study, candidate: Candidate, term: str) -> str:
    """Why a layout spends more on a term than the winner does."""
    layout, ours = candidate.layout, of.layout
    match term:
        case "compute" if layout.recompute != "none" and ours.recompute == "none":
            return f"computes again: {layout.recompute}"
        case "compute" if layout.pp > 1 and max(layout.boundaries) * layout.vpp * layout.pp > of.model.layers:
            return f"the slowest of {layout.pp} stages sets the pace"
        case "compute" if layout.tp > ours.tp:
            return f"products of 1/{layout.tp} of the width reach less of the device"
        case "tp":
            across = "" if of.pricer.topology.tp_group(layout).inside else " across islands"
            return f"tp {layout.tp} sums activations in every layer{across}"
        case "cp":
            return f"keys and values go round cp {layout.cp}"
        case "bubble":
            m = layout.num_microbatches(of.workload.global_batch)
            return f"{layout.pp} stages fill and drain around {m} microbatch{'es' if m > 1 else ''}"
        case "dp" if layout.zero > 1:
            return f"zero {layout.zero} reduces in every microbatch"
        case "dp":
            return f"gradients of {layout.dp * layout.cp} ranks"
        case "optimizer":
            return "each rank updates more parameters"
        case _:
            return ""
