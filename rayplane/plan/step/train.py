"""The price of a training layout: from the parts of each chunk, over the timeline, to an Estimate whose terms sum to the step.

pieces (compute, network) ─▶ Stages: seconds per chunk ─▶ ends of the stages (timeline) ─▶ + the step's end = step

step_s = compute + tp + cp what the slowest stage does for its microbatches
       + p2p               by how much transfers lengthen the pipe
       + bubble            the pipe's length beyond the slowest stage's own work
       + dp                what compute does not hide of reducing gradients and, under zero, of gathering weights (`replicas`)
       + optimizer         AdamW and the global norm

Where stages are on different kinds of device (`runs`), each is priced with its own seconds, links and memory, and cut by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rayplane.plan.machine.network import Group
from rayplane.plan.machine.recent import Recent
from rayplane.plan.step import memory
from rayplane.plan.step.activations import Kept, kept
from rayplane.plan.step.between import hops_s, tied_s
from rayplane.plan.step.bound import at_least_s
from rayplane.plan.step.boundaries import cut_by_time, cut_to_fit
from rayplane.plan.step.compute import Microbatch
from rayplane.plan.step.draft import SPLIT, Draft, Outline, Stages, length_s
from rayplane.plan.step.held import Held, Moments
from rayplane.plan.step.memory import StageMemory
from rayplane.plan.step.order import Orders
from rayplane.plan.step.pieces import Pieces, Ring, pieces
from rayplane.plan.step.pipe import recomputed, stages_of
from rayplane.plan.step.practice import RAYPLANE, Practice
from rayplane.plan.step.recurrence import RECURRENCES
from rayplane.plan.step.runs import Run, fleet
from rayplane.plan.step.share import Share, parts, share
from rayplane.plan.step.site import sites
from rayplane.plan.step.stretch import Stretch, stretch
from rayplane.plan.step.terms import between_ranks, in_chunks, terms_of
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout, split
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Estimate, Workload

KNOWN = 48
"""Parts, and cuts, that are kept to be shared: those of the last few degrees."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """One microbatch on a rank: what it is, what it takes in time, and in memory."""

    work: Microbatch
    pieces: Pieces
    kept: Kept


class Pricer:
    """Prices layouts of one model on one cluster, and remembers the parts that layouts share."""

    def __init__(self, model: ModelSpec, workload: Workload, cluster: ClusterSpec, practice: Practice = RAYPLANE):
        self.model, self.workload, self.cluster = model, workload, cluster
        self.practice, self._split = practice, replace(practice, overlap_tp=False)
        self.fleet = fleet(cluster, practice.dp_inside_pp)
        self._sites = sites(cluster, self.fleet, workload.precision)
        self.device, self.network, self.topology = self._sites[-1].device, self._sites[-1].network, self._sites[-1].topology
        self.device_bytes = self.fleet.memory_bytes
        self._terms = terms_of(cluster.profile)
        self.orders = Orders()
        self._tokens = workload.global_batch * workload.seq_len
        self._flops = model.flops_per_token(workload.seq_len) * self._tokens
        self._tensors = parts(model)
        self._shares: dict[int, Share] = {}
        self._groups = Recent[tuple[Group, Ring]](8)
        self._known = Recent[_Parts](KNOWN)
        self._cuts = Recent[tuple[int, ...]](KNOWN)

    def outline(self, layout: Layout) -> Outline:
        """Cut the chunks by cost unless the layout says how, and add up their memory, at least."""
        runs, samples = self.fleet.runs(layout), _samples(layout, self.workload.global_batch)
        held = memory.in_flight(layout, len(samples))
        if not layout.boundaries:
            layout = layout.but(boundaries=self._boundaries(layout, runs, held))
        fullest = self._fullest(layout, runs, held)
        return Outline(layout, samples, fullest, self._load_bytes(runs, fullest), layout.schedule in RECURRENCES, runs)

    def counted(self, outline: Outline) -> Outline:
        """With the activations in flight counted from the schedule."""
        if outline.exact:
            return outline
        held = self.orders.held(outline.layout, len(outline.samples))
        fullest = self._fullest(outline.layout, outline.runs, held)
        return replace(outline, memory=fullest, memory_bytes=self._load_bytes(outline.runs, fullest), exact=True)

    def at_least_s(self, outline: Outline) -> float:
        """A step takes no less: the way through the pipe, or on several kinds of device its work, shared as those are fast."""
        layout, layers = outline.layout, self.model.layers
        if len(outline.runs) == 1:
            return at_least_s(layout, self._parts(layout, outline.runs[0]).pieces, outline.part)
        again = sum(recomputed(layout, n) for n in layout.boundaries)
        by_run = [self._parts(layout, run).pieces for run in outline.runs]
        ends_s = min(of.embed.total_s for of in by_run) + min(of.head.total_s for of in by_run)
        each_s = [(layers - again) * of.layer.total_s + again * of.again.total_s + ends_s for of in by_run]
        return outline.rounds / sum(run.stages / seconds for run, seconds in zip(outline.runs, each_s, strict=True))

    def draft(self, outline: Outline) -> Draft:
        """Add the seconds of each chunk."""
        layout, runs = outline.layout, outline.runs
        stretches = [self._stretch(layout, run) for run in runs]
        by_chunk = sorted((chunk for of in stretches for chunk in of.chunks), key=lambda chunk: chunk.index)
        tied = self._parts(layout, runs[0]).work.share.tied_params if self.model.tied else 0
        whole = self._sites[runs[0].pool if len(runs) == 1 else -1]
        stages = Stages(
            stage_of=stages_of(layout),
            compute=tuple(c.piece.compute for c in by_chunk),
            tp=tuple(c.piece.tp for c in by_chunk),
            cp=tuple(c.piece.cp for c in by_chunk),
            dp=tuple(c.dp for c in by_chunk),
            p2p_s=hops_s(layout, runs, self._sites, self._parts(layout, runs[0]).work.residual_bytes),
            reduce_s=tuple(c.reduce_s for c in by_chunk),
            sync_s=tied_s(layout, runs, self._sites, tied) + stretches[0].weights_s,
            optimizer_s=max(of.optimizer_s for of in stretches) + whole.network.all_reduce_s(whole.topology.world(layout), 4),
            rolling=self.practice.rolling,
        )
        return Draft(outline, between_ranks(stages, self._terms))

    def price(self, draft: Draft) -> Estimate:
        """Play the pipe and sum the terms."""
        stages, pipe = draft.stages, draft.stages.pipe
        outline = self.counted(draft.outline)
        alone = replace(pipe, reduce_s=(0.0,) * len(pipe.reduce_s))
        pipe_s = length_s(alone, outline, self.orders, stages.rolling)
        unhindered_s = length_s(replace(alone, p2p_s=(0.0,) * len(pipe.p2p_s)), outline, self.orders, stages.rolling)
        step_s = draft.step_s(self.orders)
        slow = max(range(len(pipe.stage_s)), key=lambda s: pipe.stage_s[s])
        by_term = (stages.compute, stages.tp, stages.cp, stages.dp)
        compute_s, tp_s, cp_s, dp_s = (pipe.by_stage([c.total for c in of]) for of in by_term)
        busy_s = outline.rounds * pipe.stage_s[slow]
        layout, fullest = outline.layout, outline.fullest
        return Estimate(
            step_s=step_s,
            tokens_s=self._tokens / step_s,
            mfu=self._flops / (step_s * self._peak_flops(outline)),
            bubble=max(0.0, 1.0 - outline.rounds * sum(pipe.stage_s) / (layout.pp * pipe_s)),
            time_s={
                "compute": outline.rounds * compute_s[slow],
                "tp": outline.rounds * tp_s[slow],
                "cp": outline.rounds * cp_s[slow],
                "p2p": pipe_s - unhindered_s,
                "dp": outline.rounds * dp_s[slow] + step_s - stages.optimizer_s - pipe_s,
                "optimizer": stages.optimizer_s,
                "bubble": max(0.0, unhindered_s - busy_s),
            },
            memory=fullest.terms(),
            memory_bytes=fullest.total,
            verdict=memory.verdict(fullest.total, outline.room_bytes),
            stage_s=compute_s,
            stage_kinds=self._kinds(outline.runs),
        )

    def microbatch(self, layout: Layout, stage: int = 0) -> tuple[Microbatch, Pieces]:
        """One microbatch on a rank of a stage under a layout, and the parts it goes through."""
        of = self._parts(layout, next(run for run in reversed(self.fleet.runs(layout)) if run.first <= stage))
        return of.work, of.pieces

    def by_stage(self, outline: Outline) -> tuple[StageMemory, ...]:
        """Memory of every stage, counted."""
        layout, m = outline.layout, len(outline.samples)
        exact = layout.schedule in RECURRENCES
        held = memory.in_flight(layout, m) if exact else self.orders.held(layout, m)
        return self._memory(layout, outline.runs, held)

    def _parts(self, layout: Layout, run: Run) -> _Parts:
        """What layouts with the same microbatch share."""
        degrees = (layout.dp, layout.pp, layout.cp, layout.tp, layout.cp_method, run.pool)
        group, ring = self._groups.get(degrees, lambda: self._shapes(layout, run))
        split = layout.tp > 1 and layout.schedule in SPLIT
        sizes = (group.size, group.per_island, ring.group.size, ring.group.per_island, ring.method)
        key = (layout.tp, layout.micro_batch, layout.sp, layout.recompute, split, run.pool, *sizes)
        return self._known.get(key, lambda: self._made(layout, run, group, ring))

    def _shapes(self, layout: Layout, run: Run) -> tuple[Group, Ring]:
        """Of the groups that share a microbatch."""
        own, topology = run.alone(layout), self._sites[run.pool].topology
        return topology.tp_group(own), Ring(topology.cp_group(own), layout.cp_method)

    def _made(self, layout: Layout, run: Run, group: Group, ring: Ring) -> _Parts:
        if layout.tp not in self._shares:
            self._shares[layout.tp] = share(self._tensors, layout.tp)
        site = self._sites[run.pool]
        work = Microbatch(
            model=self.model,
            share=self._shares[layout.tp],
            device=site.device,
            precision=self.workload.precision,
            seq_len=self.workload.seq_len,
            samples=layout.micro_batch,
            sp=layout.sp,
            recompute=layout.recompute,
            cp=layout.cp,
            offload=self.workload.offload,
            # What weight gradients hide of tp shows at once where they are put off.
            practice=self._split if layout.tp > 1 and layout.schedule in SPLIT else self.practice,
        )
        return _Parts(work, in_chunks(pieces(work, site.network, group, ring), self._terms), kept(work))

    def _boundaries(self, layout: Layout, runs: tuple[Run, ...], held: Sequence[Sequence[Held]]) -> tuple[int, ...]:
        by_run = [self._parts(layout, run).pieces for run in runs]
        if len(runs) == 1:
            return cut_by_time(layout, self.model.layers, by_run[0], self._cuts)
        stages = [(run.memory_bytes, of) for run, of in zip(runs, by_run, strict=True) for _ in range(run.stages)]
        return self._cuts.get(
            layout, lambda: cut_to_fit(layout, self.model.layers, stages, lambda tried: self._memory(tried, runs, held))
        )

    def _memory(self, layout: Layout, runs: tuple[Run, ...], held: Sequence[Sequence[Held] | Moments]) -> tuple[StageMemory, ...]:
        """Of every stage, on its own devices."""
        out: list[StageMemory] = []
        for run in runs:
            of = self._parts(layout, run)
            out += memory.stage_memory(of.work, of.kept, layout, held)[run.first : run.first + run.stages]
        return tuple(out)

    def _fullest(self, layout: Layout, runs: tuple[Run, ...], held: Sequence[Sequence[Held] | Moments]) -> tuple[StageMemory, ...]:
        """Of the fullest stage of each run."""
        parts = [self._parts(layout, run) for run in runs]
        return tuple(
            memory.fullest(of.work, of.kept, layout, held, slice(run.first, run.first + run.stages))
            for run, of in zip(runs, parts, strict=True)
        )

    def _load_bytes(self, runs: tuple[Run, ...], fullest: Sequence[StageMemory]) -> int:
        """Of the fullest stage; on a smaller device memory counts as much more as that has less."""
        return max(-(-of.total * self.device_bytes // run.memory_bytes) for run, of in zip(runs, fullest, strict=True))

    def _stretch(self, layout: Layout, run: Run) -> Stretch:
        of = self._parts(layout, run)
        return stretch(layout, run, self._sites[run.pool], of.work, of.pieces)

    def _peak_flops(self, outline: Outline) -> float:
        """Of all devices together."""
        a_stage = outline.layout.size // outline.layout.pp
        return sum(a_stage * run.stages * self._sites[run.pool].device.peak_flops[self.workload.precision] for run in outline.runs)

    def _kinds(self, runs: Sequence[Run]) -> tuple[str, ...]:
        """By stage, where there are several."""
        return tuple(self.fleet.pools[run.pool].kind for run in runs for _ in range(run.stages)) if len(runs) > 1 else ()


def price(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: Layout) -> Estimate:
    """Predict one layout; its boundaries are cut by cost when it has none."""
    pricer = Pricer(model, workload, cluster)
    return pricer.price(pricer.draft(pricer.outline(layout)))


def _samples(layout: Layout, global_batch: int) -> tuple[int, ...]:
    """Samples of each microbatch of the busiest replica. Under zero 2 and 3 their sizes are nearly equal, which takes as long."""
    full, rest = divmod(split(global_batch, layout.dp, 0)[1], layout.micro_batch)
    return (layout.micro_batch,) * full + ((rest,) if rest else ())
