"""The planner: prices every layout it may use, keeps the best, and keeps of every other one why it lost or was refused.

    candidates ──▶ drafts ──does not fit──▶ Rejected
                     │ fits
                     ▼ in order of their lower bounds: a layout whose bound is behind the best already played is not played
                   the best variant of each dp x pp x tp ──▶ winner, runners-up

A layout that fits goes before a tight one, then the faster goes first. The same input gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayplane.errors import PlacementError, SpecError
from rayplane.plan import pinned
from rayplane.plan.candidates import Space, using_all, using_fewer, variants
from rayplane.plan.draft import Draft, Outline
from rayplane.plan.memory import TIGHT
from rayplane.plan.place import place
from rayplane.plan.remedy import Fitting, shortage, too_large
from rayplane.plan.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Candidate, Plan, Rejected, Workload

SHOWN = 12
"""So many dp x pp x tp are priced to the end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of some layouts: the best of each dp x pp x tp in order of preference, the others with their reasons."""

    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    smallest: Outline | None
    """The layout that needs least memory, whether it fits or not."""


def plan(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: LayoutSection | None) -> Plan:
    """The best layout, or the given one with what it leaves open filled in.

    Raises SpecError for a layout that contradicts the model, the batch or the cluster, PlacementError when nothing fits.
    """
    if not cluster.num_devices:
        raise SpecError("the cluster has no devices")
    pricer = Pricer(model, workload, cluster)
    space = Space(model, workload, pricer.topology, cluster.num_devices)
    outcome = _automatic(pricer, space) if layout is None else _evaluate(pricer, pinned.layouts(space, layout))
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
    outcome = _evaluate(pricer, [v for d in degrees for v in variants(space, d)])
    rejected = (*refused, *outcome.rejected)
    if outcome.ranked:
        return Outcome(outcome.ranked, rejected, outcome.smallest)
    fewer = _evaluate(pricer, [v for d in using_fewer(space) for v in variants(space, d)])
    smallest = min((o for o in (outcome.smallest, fewer.smallest) if o), key=lambda o: o.memory_bytes, default=None)
    return Outcome(fewer.ranked, (*rejected, *fewer.rejected), smallest)


def _evaluate(pricer: Pricer, layouts: Iterable[Layout]) -> Outcome:
    outlines = [pricer.outline(layout) for layout in layouts]
    large = [o for o in outlines if o.memory_bytes > pricer.device_bytes]
    fitting = [o for o in outlines if o.memory_bytes <= pricer.device_bytes]
    ranked, lost = _compete(pricer, [pricer.draft(o) for o in fitting])
    sizes = Fitting.of(o.layout for o in fitting)
    refused = [Rejected(o.layout, too_large(o, pricer.device_bytes, sizes)) for o in large]
    return Outcome(tuple(ranked), (*refused, *lost), min(outlines, key=lambda o: o.memory_bytes, default=None))


def _compete(pricer: Pricer, drafts: list[Draft]) -> tuple[list[Candidate], list[Rejected]]:
    """The best of each dp x pp x tp in order of preference, and the others with what they lose by."""
    groups: dict[tuple[int, int, int], list[_Entry]] = {}
    for entry in sorted((_entry(d, d.bound_s, pricer) for d in drafts), key=_key):
        layout = entry.draft.layout
        groups.setdefault((layout.dp, layout.pp, layout.tp), []).append(entry)
    ranked: list[_Entry] = []
    lost: list[Rejected] = []
    for group in groups.values():
        if len(ranked) >= SHOWN and group[0].seconds > ranked[SHOWN - 1].seconds:
            lost += [_slower(entry, ranked[0], "at least ") for entry in group]
        else:
            best, others = _best(pricer, group)
            ranked = sorted([*ranked, best], key=_key)
            lost += others
    return [Candidate(entry.draft.layout, pricer.price(entry.draft)) for entry in ranked], lost


def _best(pricer: Pricer, group: list[_Entry]) -> tuple[_Entry, list[Rejected]]:
    """The best variant of some degrees; `group` holds their bounds, those that fit first, then by seconds."""
    played: list[_Entry] = []
    behind: list[_Entry] = []
    for entry in group:
        if played and (entry.tight, entry.seconds) > min(played, key=_key).key[:2]:
            behind.append(entry)
        else:
            played.append(_entry(entry.draft, entry.draft.step_s, pricer))
    best, *others = sorted(played, key=_key)
    return best, [*(_slower(e, best, "") for e in others), *(_slower(e, best, "at least ") for e in behind)]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A draft in the competition, with its lower bound or its step."""

    draft: Draft
    tight: bool
    seconds: float

    @property
    def key(self) -> tuple[bool, float, int, tuple[int, ...]]:
        """Preference; the last digits, which depend on the order of summation, do not count."""
        layout = self.draft.layout
        order = (layout.pp, layout.tp, layout.micro_batch, int(layout.schedule != "1f1b"))
        return self.tight, float(f"{self.seconds:.9g}"), self.draft.outline.memory_bytes, order


def _entry(draft: Draft, seconds: float, pricer: Pricer) -> _Entry:
    return _Entry(draft, draft.outline.memory_bytes > TIGHT * pricer.device_bytes, seconds)


def _key(entry: _Entry) -> tuple[bool, float, int, tuple[int, ...]]:
    return entry.key


def _slower(entry: _Entry, best: _Entry, at_least: str) -> Rejected:
    layout, winner = entry.draft.layout, best.draft.layout
    if entry.tight and not best.tight:
        return Rejected(layout, f"tight: above {TIGHT:.0%} of the memory of a device, where {winner} fits")
    return Rejected(layout, f"slower: {at_least}{entry.seconds:.4g} s a step, {winner} takes {best.seconds:.4g} s")


def _nothing_fits(pricer: Pricer, space: Space, outcome: Outcome, given: bool) -> str:
    """The message for a user whose layout, or model, does not fit."""
    closest = outcome.smallest
    assert closest is not None
    lack = shortage(closest, pricer.device_bytes)
    if not given:
        return f"no layout fits this cluster. The closest, {lack}. Use more devices, larger ones, or a smaller model or seq_len"
    others = _automatic(pricer, space).ranked
    if not others:
        return f"the layout does not fit, nor does any other: {lack}"
    near = min(others, key=lambda c: pinned.distance(c.layout, closest.layout))
    return f"the layout does not fit: {lack}. Nearest that fits: {near.layout}"
