"""The planner: prices every layout it may use, keeps the best, and keeps of every other one why it lost or was refused.

    candidates ──▶ drafts with lower bounds of step and memory ──too large──▶ Rejected, and the same with less memory
                     │
                     ▼ of each dp x pp x cp x tp the most promising first: its memory is counted and its timeline played; the first
                       played one that comes up again, ahead of every bound, is the best
                   the best of each dp x pp x cp x tp ──▶ winner, runners-up

A layout that fits goes before a tight one, then the faster goes first. The same input gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from rayplane.errors import PlacementError, SpecError
from rayplane.plan import pinned
from rayplane.plan.candidates import Ladder, Space, leaner, using_all, using_fewer, variants
from rayplane.plan.contest import Contest, Entry, Less, key_of
from rayplane.plan.draft import Outline
from rayplane.plan.memory import TIGHT
from rayplane.plan.place import place
from rayplane.plan.remedy import Fitting, shortage, too_large
from rayplane.plan.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Candidate, Plan, Rejected, Workload

SHOWN = 12
"""So many dp x pp x cp x tp are priced to the end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of some layouts: the best of each dp x pp x cp x tp in order of preference, the others with their reasons."""

    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    smallest: Outline | None
    """The layout found to need least memory, whether it fits or not."""


def plan(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: LayoutSection | None) -> Plan:
    """The best layout, or the given one with what it leaves open filled in.

    Raises SpecError for a layout that contradicts the model, the batch or the cluster, PlacementError when nothing fits.
    """
    if not cluster.num_devices:
        raise SpecError("the cluster has no devices")
    pricer = Pricer(model, workload, cluster)
    space = Space(model, workload, pricer.topology, cluster.num_devices)
    outcome = _automatic(pricer, space) if layout is None else _evaluate(pricer, [pinned.layouts(space, layout)], pinned.as_given)
    if not outcome.ranked:
        raise PlacementError(_nothing_fits(pricer, space, outcome, layout is not None))
    best, *others = outcome.ranked
    return Plan(
        layout=best.layout,
        num_microbatches=best.layout.num_microbatches(workload.global_batch),
        placement=place(best.layout, cluster),
        estimate=best.estimate,
        cluster=cluster,
        runners_up=tuple(sorted(others, key=lambda c: c.estimate.step_s)),
        rejected=outcome.rejected,
    )


def _automatic(pricer: Pricer, space: Space) -> Outcome:
    """Layouts over all devices; over fewer only when none of those is left."""
    degrees, refused = using_all(space)
    less = partial(leaner, global_batch=space.workload.global_batch)
    outcome = _evaluate(pricer, [v for d in degrees for v in variants(space, d)], less)
    rejected = (*refused, *outcome.rejected)
    if outcome.ranked:
        return Outcome(outcome.ranked, rejected, outcome.smallest)
    fewer = _evaluate(pricer, [v for d in using_fewer(space) for v in variants(space, d)], less)
    smallest = min((o for o in (outcome.smallest, fewer.smallest) if o), key=lambda o: o.memory_bytes, default=None)
    return Outcome(fewer.ranked, (*rejected, *fewer.rejected), smallest)


def _evaluate(pricer: Pricer, ladders: Iterable[Ladder], less: Less) -> Outcome:
    """Let layouts compete; `less` names what to try where one is too large."""
    groups: dict[tuple[int, int, int, int], Contest] = {}
    for ladder in ladders:
        groups.setdefault((ladder[0].dp, ladder[0].pp, ladder[0].cp, ladder[0].tp), Contest(pricer, less)).climb(ladder)
    ranked: list[Entry] = []
    lost: list[Rejected] = []
    for group in sorted((g for g in groups.values() if g.queue), key=lambda g: g.queue[0].key):
        best = group.best(ranked[SHOWN - 1].seconds if len(ranked) >= SHOWN else math.inf)
        if best:
            ranked = sorted([*ranked, best], key=key_of)
        if best or ranked:
            lost += [_slower(entry, best or ranked[0]) for entry in sorted(group.queue, key=key_of)]
    sizes = Fitting.of(o.layout for group in groups.values() for o in group.fitting)
    large = [o for group in groups.values() for o in group.large]
    refused = [Rejected(o.layout, too_large(o, pricer.device_bytes, sizes)) for o in large]
    known = [*large, *(o for group in groups.values() for o in group.fitting)]
    smallest = min(known, key=lambda o: o.memory_bytes, default=None)
    candidates = tuple(Candidate(entry.outline.layout, pricer.price(entry.draft)) for entry in ranked if entry.draft)
    return Outcome(candidates, (*refused, *lost), smallest)


def _slower(entry: Entry, best: Entry) -> Rejected:
    layout, winner = entry.outline.layout, best.outline.layout
    if entry.tight and not best.tight:
        return Rejected(layout, f"tight: above {TIGHT:.0%} of the memory of a device, where {winner} fits")
    at_least = "" if entry.played else "at least "
    return Rejected(layout, f"slower: {at_least}{entry.seconds:.4g} s a step, {winner} takes {best.seconds:.4g} s")


def _nothing_fits(pricer: Pricer, space: Space, outcome: Outcome, given: bool) -> str:
    """The message for a user whose layout, or model, does not fit."""
    assert outcome.smallest is not None
    closest = pricer.counted(outcome.smallest)
    lack = shortage(closest, pricer.device_bytes, not (space.workload.offload or pricer.device.is_host))
    if not given:
        return f"no layout fits this cluster. The closest, {lack}. Use more devices, larger ones, or a smaller model or seq_len"
    others = _automatic(pricer, space).ranked
    if not others:
        return f"the layout does not fit, nor does any other: {lack}"
    near = min(others, key=lambda c: pinned.distance(c.layout, closest.layout))
    return f"the layout does not fit: {lack}. Nearest that fits: {near.layout}"
