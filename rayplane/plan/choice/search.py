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
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rayplane.errors import PlacementError, SpecError
from rayplane.plan.choice import fewer as fewer_devices
from rayplane.plan.choice import pinned
from rayplane.plan.choice.candidates import Ladder, Space, leaner, using_all, using_fewer, variants
from rayplane.plan.choice.contest import Contest, Entry, Less, key_of
from rayplane.plan.choice.misfit import given_too_large, none_fits
from rayplane.plan.choice.place import place
from rayplane.plan.choice.promise import Floor, floor_s, floors, promise_s
from rayplane.plan.choice.refused import Records, Refused, Why
from rayplane.plan.step.draft import Outline
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Candidate, Placement, Plan, Workload

SHOWN = 6
"""So many dp x pp x cp x tp are priced to the end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of some layouts: the best of each dp x pp x cp x tp in order of preference, the others with their reasons."""

    ranked: tuple[Candidate, ...]
    records: tuple[Records, ...]
    smallest: Outline | None
    """The layout found to need least memory, whether it fits or not."""
    impossible: array[int] = field(default_factory=lambda: array("Q"))
    """Degrees of which there is no layout at all."""

    def beside(self, fewer: Outcome) -> Outcome:
        """With what became of layouts over fewer devices, of which those ranked go first."""
        smallest = min((o for o in (self.smallest, fewer.smallest) if o), key=lambda o: o.memory_bytes, default=None)
        return Outcome((*fewer.ranked, *self.ranked), (*self.records, *fewer.records), smallest, self.impossible)


def plan(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: LayoutSection | None) -> Plan:
    """The best layout, or the given one with what it leaves open filled in.

    Raises SpecError for a layout that contradicts the model, the batch or the cluster, PlacementError when nothing fits.
    """
    found = searched(model, workload, cluster, layout)
    return replace(found, placement=place(found.layout, cluster))


def searched(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: LayoutSection | None) -> Plan:
    """The plan before its stages are placed."""
    if not cluster.num_devices:
        raise SpecError("the cluster has no devices")
    pricer = Pricer(model, workload, cluster)
    space = Space(model, workload, pricer.topology, cluster.num_devices)
    outcome = _automatic(pricer, space) if layout is None else _given(pricer, space, layout)
    if not outcome.ranked:
        raise PlacementError(_nothing_fits(pricer, space, outcome, layout is not None))
    best, *others = outcome.ranked
    return Plan(
        layout=best.layout,
        num_microbatches=best.layout.num_microbatches(workload.global_batch),
        placement=Placement(()),
        estimate=best.estimate,
        cluster=cluster,
        runners_up=tuple(sorted(others, key=lambda c: c.estimate.step_s)),
        rejected=Refused(space, outcome.impossible, outcome.records),
    )


def _given(pricer: Pricer, space: Space, section: LayoutSection) -> Outcome:
    """The layouts that a section leaves open."""
    ladder = pinned.layouts(space, section)
    return _evaluate(pricer, [(_no_floor, [ladder])], pinned.as_given)


def _automatic(pricer: Pricer, space: Space) -> Outcome:
    """Layouts over all devices; over fewer only when none of those is left."""
    degrees, refused = using_all(space)
    degrees += [d for n in pricer.fleet.sizes() for d in using_all(replace(space, num_devices=n))[0]]
    outcome = replace(_compete(pricer, space, degrees), impossible=refused)
    if not outcome.ranked:
        outcome = outcome.beside(_compete(pricer, space, using_fewer(space)))
    return _with_fewer(pricer, space, outcome) if outcome.ranked else outcome


def _with_fewer(pricer: Pricer, space: Space, outcome: Outcome) -> Outcome:
    """Layouts that leave devices idle as well, where one of them is the best."""
    best, batch = outcome.ranked[0], space.workload.global_batch
    sizes = fewer_devices.sizes(best, batch, space.model.layers, space.num_devices, space.topology.largest)
    degrees = [d for n in sizes for d in using_all(replace(space, num_devices=n))[0]]
    if best.estimate.verdict != "tight":
        degrees = [d for d in degrees if floor_s(pricer, space, d) <= best.estimate.step_s]
    known = Entry(best.layout, True, True, True, (*_preference(best), best.estimate.memory_bytes, ()))
    fewer = _compete(pricer, space, degrees, known)
    ahead = tuple(c for c in fewer.ranked if _preference(c) < _preference(best))
    return outcome.beside(replace(fewer, ranked=ahead)) if ahead else outcome


def _compete(pricer: Pricer, space: Space, degrees: Sequence[Layout], known: Entry | None = None) -> Outcome:
    """All layouts of some degrees, those first that promise most, since what they reach spares the others."""
    order = sorted(degrees, key=lambda d: promise_s(pricer, space, d))
    less = partial(leaner, global_batch=space.workload.global_batch)
    return _evaluate(pricer, ((floors(pricer, space, d), variants(space, d)) for d in order), less, known)


def _evaluate(pricer: Pricer, groups: Iterable[tuple[Floor, Sequence[Ladder]]], less: Less, known: Entry | None = None) -> Outcome:
    """Let layouts compete, those of the same degrees at a time; `less` names what to try where one is too large.

    Of what is slower than a `known` layout nothing is ranked.
    """
    known_s = known.seconds if known and not known.tight else math.inf
    ranked: list[Entry] = []
    records = Records(pricer.device_bytes)
    smallest: Outline | None = None
    for floor, ladders in groups:
        group = Contest(pricer, less, records)
        last = ranked[SHOWN - 1] if len(ranked) >= SHOWN else None
        limit_s = last.seconds if last and not last.tight else known_s
        for ladder in ladders:
            promising = [layout for layout in ladder if floor(layout.micro_batch, layout.sp) <= limit_s]
            if promising:
                group.climb(promising)
            if last and len(promising) < len(ladder):
                for layout in ladder:
                    if layout not in promising:
                        records.add(layout, Why.NO_FASTER, floor(layout.micro_batch, layout.sp), (last.layout, last.seconds))
        if best := group.best(limit_s):
            ranked = sorted([*ranked, best], key=key_of)
        for entry in sorted(group.queue, key=key_of):
            _lose(records, entry, best or known or ranked[0])
        smallest = min((o for o in (smallest, group.smallest) if o), key=lambda o: o.memory_bytes, default=None)
    drafts = (pricer.draft(pricer.outline(entry.layout)) for entry in ranked)
    return Outcome(tuple(Candidate(draft.layout, pricer.price(draft)) for draft in drafts), (records,), smallest)


def _no_floor(micro_batch: int, sp: bool) -> float:
    return 0.0


def _lose(records: Records, entry: Entry, best: Entry) -> None:
    why = Why.TIGHT if entry.tight and not best.tight else Why.SLOWER if entry.played else Why.NO_FASTER
    records.add(entry.layout, why, entry.seconds, (best.layout, best.seconds))


def _preference(candidate: Candidate) -> tuple[bool, float]:
    """What fits goes before what is tight, then the faster."""
    return candidate.estimate.verdict == "tight", float(f"{candidate.estimate.step_s:.9g}")


def _nothing_fits(pricer: Pricer, space: Space, outcome: Outcome, given: bool) -> str:
    """The message for a user whose layout, or model, does not fit."""
    assert outcome.smallest is not None
    if not given:
        return none_fits(pricer, space, outcome.smallest)
    return given_too_large(pricer, space, outcome.smallest, _automatic(pricer, space).ranked)
