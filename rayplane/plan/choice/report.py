"""A plan as rows and sentences: what `rayplane plan` prints, and the same as plain data for programs.

layout            step      tokens/s  memory per device  bubble  verdict
dp2 mb8           4.46 s         919  1.6 GB             0%      fits
pp2 1f1b mb1 5+3  4.91 s         834  0.7 GB             11%     fits
tp2 mb16          5.20 s         787  1.5 GB             0%      fits
dp2 mb8 takes 455 ms a step less than pp2 1f1b mb1 5+3: compute -370 ms, bubble -206 ms, dp +91.6 ms, optimizer +29.5 ms
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rayplane.plan.choice.mixture import kinds_note
from rayplane.plan.step.memory import gigabytes
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Candidate, Estimate, Plan

HEADERS = ("layout", "step", "tokens/s", "memory per device", "bubble", "verdict")


@dataclass(frozen=True, slots=True)
class Report:
    """What to print: the ranked table (the winner first), the refused layouts, and sentences."""

    headers: tuple[str, ...]
    ranked: tuple[tuple[str, ...], ...]
    refused: tuple[tuple[str, str], ...]
    """(layout, reason)."""
    why: str
    notes: tuple[str, ...]


def report(plan: Plan) -> Report:
    """Everything a user may want to see of a plan."""
    winner = Candidate(plan.layout, plan.estimate)
    return Report(
        headers=HEADERS,
        ranked=tuple(_row(c) for c in (winner, *plan.runners_up)),
        refused=tuple((str(r.layout), r.reason) for r in plan.rejected),
        why=why(plan),
        notes=tuple(_notes(plan)),
    )


def why(plan: Plan) -> str:
    """The winner against the next: which terms of the step make the difference; and what was faster but tight in memory."""
    ours = plan.estimate
    faster = [c for c in plan.runners_up if c.estimate.step_s < ours.step_s]
    slower = [c for c in plan.runners_up if c.estimate.step_s >= ours.step_s]
    said = []
    if faster:
        less_s, needs = seconds(ours.step_s - faster[0].estimate.step_s), gigabytes(faster[0].estimate.memory_bytes)
        said.append(f"{faster[0].layout} would take {less_s} a step less, but is tight: {needs}")
    if slower:
        gain_s = slower[0].estimate.step_s - ours.step_s
        said.append(f"{plan.layout} takes {seconds(gain_s)} a step less than {slower[0].layout}: {_terms(ours, slower[0].estimate)}")
    return "; ".join(said) or f"{plan.layout} is the only layout that the job and the cluster leave"


def _terms(ours: Estimate, theirs: Estimate) -> str:
    """The terms that differ most."""
    deltas = sorted(((ours.time_s[t] - theirs.time_s[t], t) for t in ours.time_s), key=lambda d: (-abs(d[0]), d[1]))
    shown = [
        f"{term} {'+' if delta > 0 else '-'}{seconds(abs(delta))}"
        for delta, term in deltas[:4]
        if abs(delta) > 0.05 * abs(deltas[0][0])
    ]
    return ", ".join(shown) or "they take the same time"


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data."""
    return {
        "layout": asdict(plan.layout),
        "num_microbatches": plan.num_microbatches,
        **asdict(plan.estimate),
        "evaluated": 1 + len(plan.runners_up) + len(plan.rejected),
        "placement": [asdict(slot) for slot in plan.placement.slots],
        "runners_up": [{"layout": asdict(c.layout), **asdict(c.estimate)} for c in plan.runners_up],
        "rejected": [{"layout": asdict(r.layout), "reason": r.reason} for r in plan.rejected],
        "why": why(plan),
        "notes": _notes(plan),
    }


def seconds(value: float) -> str:
    """With three digits, in the unit that suits."""
    if value >= 1 or value == 0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def size(num_bytes: float) -> str:
    """Bytes with three digits, in the decimal unit that suits."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= unit:
            return f"{_digits(num_bytes / unit)} {name}"
    return f"{num_bytes:.0f} B"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _row(candidate: Candidate) -> tuple[str, ...]:
    e = candidate.estimate
    tokens = f"{e.tokens_s:,.0f}"
    return str(candidate.layout), seconds(e.step_s), tokens, gigabytes(e.memory_bytes), f"{e.bubble:.0%}", e.verdict


def _notes(plan: Plan) -> list[str]:
    """What the table does not say."""
    notes = []
    idle = plan.cluster.num_devices - plan.layout.size
    if idle:
        causes = [r.reason for r in plan.rejected if r.layout.size == plan.cluster.num_devices]
        because = f": with all of them, {_first(causes)}" if causes else ", as the job's layout asks"
        if all_used := [c for c in plan.runners_up if c.layout.size == plan.cluster.num_devices]:
            because = f": with all of them, the best, {all_used[0].layout}, takes {seconds(all_used[0].estimate.step_s)}"
        notes.append(f"uses {plan.layout.size} of {plan.cluster.num_devices} devices{because}")
    if kinds := kinds_note(plan):
        notes.append(kinds)
    if _crosses(plan.layout, plan):
        notes.append(f"tp {plan.layout.tp} leaves an island, so its collectives run over the fabric")
    return notes


def _first(causes: list[str]) -> str:
    return causes[0] + (f" ({len(causes) - 1} more below)" if len(causes) > 1 else "")


def _crosses(layout: Layout, plan: Plan) -> bool:
    """Whether a tp group, of consecutive ranks, has members in two islands."""
    islands: dict[int, set[str]] = {}
    for slot in plan.placement.slots:
        for rank in slot.ranks:
            islands.setdefault(rank // layout.tp, set()).add(slot.island)
    return any(len(names) > 1 for names in islands.values())
