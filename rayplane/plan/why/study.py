"""A plan and all that it takes to ask why: its pricer, its winner in chunks, and what other degrees would give.

best(degrees)    the best layout of each dp x pp x cp x tp, every option open: what the search found, else found now
fitted(layout)   a layout with the zero and recomputation that let it fit and cost least
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from rayplane.plan.choice.candidates import RECOMPUTE, Space, leaner, unequal, variants
from rayplane.plan.choice.contest import Contest
from rayplane.plan.choice.refused import Records
from rayplane.plan.choice.search import plan
from rayplane.plan.step import compute
from rayplane.plan.step.draft import Draft
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.step.terms import terms_of
from rayplane.plan.step.train import Pricer
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection
from rayplane.spec.layout import Layout, unsupported
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Candidate, Plan, Workload

DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, slots=True)
class Study:
    """What every part of an explanation starts from."""

    plan: Plan
    section: LayoutSection | None
    """The layout that the job gives, if it gives one."""
    pricer: Pricer
    draft: Draft
    """The winner in seconds of its chunks."""

    @property
    def model(self) -> ModelSpec:
        """What is trained."""
        return self.pricer.model

    @property
    def workload(self) -> Workload:
        """A step."""
        return self.pricer.workload

    @property
    def layout(self) -> Layout:
        """The winner."""
        return self.plan.layout

    @property
    def slowest(self) -> int:
        """The stage whose seconds the estimate's terms are."""
        stage_s = self.draft.stages.pipe.stage_s
        return max(range(len(stage_s)), key=lambda s: stage_s[s])

    @property
    def max_tp(self) -> int:
        """The smallest thing that tp cuts."""
        return min(self.model.heads, self.model.mlp, self.model.vocab)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The winner, then the others that were priced."""
        return (Candidate(self.layout, self.plan.estimate), *self.plan.runners_up)

    def pricer_for(self, workload: Workload) -> Pricer:
        """Of the same model and cluster for other steps, with the schedules that are already compiled."""
        out = Pricer(self.model, workload, self.plan.cluster)
        out.orders = self.pricer.orders
        return out

    def best(self, degrees: Iterable[Layout]) -> Candidate | None:
        """The fastest layout of some degrees; one that fits goes before a tight one."""
        found = [c for wanted in dict.fromkeys(_degrees(d) for d in degrees) if (c := self._best(wanted))]
        return quickest(found)

    def _best(self, wanted: tuple[int, int, int, int]) -> Candidate | None:
        for known in self.candidates:
            if _degrees(known.layout) == wanted:
                return known
        dp, pp, cp, tp = wanted
        if dp > self.workload.global_batch or pp > self.model.layers or tp > self.max_tp:
            return None
        space = Space(self.model, self.workload, self.pricer.topology, self.plan.cluster.num_devices)
        less = partial(leaner, global_batch=self.workload.global_batch)
        contest = Contest(self.pricer, less, Records(self.pricer.device_bytes))
        for ladder in variants(space, Layout(dp=dp, pp=pp, cp=cp, tp=tp)):
            contest.climb(ladder)
        entry = contest.best(math.inf)
        return priced(self.pricer, entry.layout) if entry else None


def study(model: ModelSpec, workload: Workload, cluster: ClusterSpec, section: LayoutSection | None) -> Study:
    """Plan, and keep what explaining needs. Raises what `search.plan` raises."""
    found = plan(model, workload, cluster, section)
    pricer = Pricer(model, workload, cluster)
    return Study(found, section, pricer, pricer.draft(pricer.outline(found.layout)))


def priced(pricer: Pricer, layout: Layout) -> Candidate:
    """A layout as it is, whether it fits or not."""
    estimate = pricer.price(pricer.draft(pricer.outline(layout)))
    return Candidate(pricer.outline(layout).layout, estimate)


def fitted(pricer: Pricer, layout: Layout) -> Candidate | None:
    """A layout with the zero and recomputation that let it fit and cost least; None when nothing does."""
    least, most = (min(layout.zero, 1), 4) if layout.dp * layout.cp > 1 else (0, 1)
    # In a pipe, where zero 2 and 3 talk in every microbatch, they come last.
    for zeros in (range(least, most),) if layout.pp == 1 else (range(least, min(2, most)), range(2, most)):
        found = [c for recompute, zero in product(RECOMPUTE, zeros) if (c := _fitting(pricer, layout, recompute, zero))]
        if best := quickest(found):
            return best
    return None


def _fitting(pricer: Pricer, layout: Layout, recompute: str, zero: int) -> Candidate | None:
    tried = replace(layout, zero=zero, recompute=recompute, recompute_layers=0, shard=0)
    if unsupported(tried) or unequal(tried, pricer.workload.global_batch):
        return None
    outline = pricer.counted(pricer.outline(tried))
    if outline.memory_bytes > pricer.device_bytes:
        return None
    return Candidate(outline.layout, pricer.price(pricer.draft(outline)))


def quickest(found: Iterable[Candidate]) -> Candidate | None:
    """The shortest step; one that fits goes before a tight one."""
    return min(found, key=lambda c: (c.estimate.verdict == "tight", c.estimate.step_s), default=None)


def lack(candidate: Candidate, device_bytes: int) -> str:
    """Why a priced layout cannot run, or nothing."""
    if candidate.estimate.verdict != DOES_NOT_FIT:
        return ""
    return f"{DOES_NOT_FIT}: {gigabytes(candidate.estimate.memory_bytes)} of {gigabytes(device_bytes)}"


def waits_s(of: Study) -> tuple[float, float]:
    """What the slowest stage waits in a step for the slower rank at collectives of tp and of cp: no communication, but their price."""
    layout, (work, parts) = of.layout, of.pricer.microbatch(of.layout, of.slowest)
    chunks = [c for c, stage in enumerate(of.draft.stages.stage_of) if stage == of.slowest]
    terms = terms_of(of.plan.cluster.profile)
    computed_s = sum(of.draft.stages.compute[c].total for c in chunks)
    embed_s = terms.compute * compute.embedding(work).total * (0 in chunks)
    head_s = parts.head.compute.total * (layout.num_chunks - 1 in chunks)
    rounds, ratios = of.draft.outline.rounds, work.device.ratios
    tp_s = work.device.jitter * (computed_s - embed_s) * terms.tp / terms.compute if layout.tp > 1 else 0.0
    cp_s = ratios.cp_jitter * (computed_s - embed_s - head_s) * terms.cp / terms.compute if layout.cp > 1 else 0.0
    return rounds * tp_s, rounds * cp_s


def _degrees(layout: Layout) -> tuple[int, int, int, int]:
    return layout.dp, layout.pp, layout.cp, layout.tp
