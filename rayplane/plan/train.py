"""The price of a training layout: from the parts of each chunk, over the timeline, to an Estimate whose terms sum to the step.

pieces (compute, network) ─▶ Stages: seconds per chunk ─▶ ends of the stages (timeline) ─▶ + the step's end = step

step_s = compute + tp + cp what the slowest stage does for its microbatches
       + p2p               by how much transfers lengthen the pipe
       + bubble            the pipe's length beyond the slowest stage's own work
       + dp                what compute does not hide of reducing gradients and, under zero, of gathering weights (`replicas`)
       + optimizer         AdamW and the global norm
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rayplane.plan import compute, memory
from rayplane.plan.activations import Kept, kept
from rayplane.plan.compute import Microbatch
from rayplane.plan.draft import SPLIT, Draft, Outline, Stages, ends
from rayplane.plan.network import Group, Network
from rayplane.plan.order import Orders
from rayplane.plan.partition import cut
from rayplane.plan.pieces import Pieces, Ring, pieces
from rayplane.plan.pipe import chunks_of_stages, recomputed, stages_of
from rayplane.plan.practice import RAYPLANE, Practice
from rayplane.plan.profile import device_of
from rayplane.plan.recurrence import RECURRENCES
from rayplane.plan.replicas import Replicas, Unit
from rayplane.plan.share import Share, chunk_params, parts, share
from rayplane.plan.states import GRADIENT_BYTES, parameters
from rayplane.plan.terms import between_ranks, in_chunks, terms_of
from rayplane.plan.topology import topology
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout, split
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Estimate, Workload


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
        self.device = device_of(cluster, workload.precision)
        self._terms = terms_of(cluster.profile)
        self.device_bytes = cluster.memory_bytes
        self.network = Network(cluster.links, self.device)
        self.topology = topology(cluster, practice.dp_inside_pp)
        self.orders = Orders()
        self._tokens = workload.global_batch * workload.seq_len
        self._flops = model.flops_per_token(workload.seq_len) * self._tokens
        self._tensors = parts(model)
        self._shares: dict[int, Share] = {}
        self._groups: dict[tuple[int, int, int, int, str], tuple[Group, Ring]] = {}
        self._known: dict[tuple[int, int, bool, str, Group, Ring, bool], _Parts] = {}
        self._cuts: dict[tuple[float, float, float, tuple[int, ...]], tuple[int, ...]] = {}

    def outline(self, layout: Layout) -> Outline:
        """Cut the chunks by cost unless the layout says how, and add up their memory, at least."""
        if not layout.boundaries:
            layout = replace(layout, boundaries=self._boundaries(layout))
        samples = _samples(layout, self.workload.global_batch)
        of, held = self._parts(layout), memory.in_flight(layout, len(samples))
        by_stage = memory.stage_memory(of.work, of.kept, layout, held)
        exact = layout.schedule in RECURRENCES
        return Outline(layout, samples, by_stage, max(stage.total for stage in by_stage), exact)

    def counted(self, outline: Outline) -> Outline:
        """With the activations in flight counted from the schedule."""
        if outline.exact:
            return outline
        held = self.orders.of(outline.layout, len(outline.samples)).held
        of = self._parts(outline.layout)
        by_stage = memory.stage_memory(of.work, of.kept, outline.layout, held)
        return replace(outline, memory=by_stage, memory_bytes=max(stage.total for stage in by_stage), exact=True)

    def at_least_s(self, outline: Outline) -> float:
        """A step takes no less: the work of all chunks, shared evenly."""
        layout, of = outline.layout, self._parts(outline.layout).pieces
        again = sum(recomputed(layout, n) for n in layout.boundaries)
        layers_s = (self.model.layers - again) * of.layer.total_s + again * of.again.total_s
        return outline.rounds * (layers_s + of.embed.total_s + of.head.total_s) / layout.pp

    def draft(self, outline: Outline) -> Draft:
        """Add the seconds of each chunk."""
        layout = outline.layout
        of, work, last = self._parts(layout).pieces, self._parts(layout).work, layout.num_chunks - 1
        chunks = [of.chunk(n, recomputed(layout, n), c == 0, c == last) for c, n in enumerate(layout.boundaries)]
        alike: dict[tuple[int, bool, bool], Unit] = {}
        units = []
        for c, n in enumerate(layout.boundaries):
            key = (n, c == 0, c == last)
            if key not in alike:
                alike[key] = Unit(*key, chunks[c].compute, chunk_params(work.share, layout, c))
            units.append(alike[key])
        replicas = Replicas.of(layout, self.topology, self.network, work)
        each_s = {u: replicas.each_s(work.share, u) for u in set(units)}
        reduce_s = self._reductions_s(layout, replicas, units)
        held = [parameters(work.share, layout, own) for own in chunks_of_stages(layout)]
        fullest = max(held, key=lambda p: p.cut + p.common)
        optimizer_s = compute.optimizer_s(self.device, fullest.held(layout, 1), work.precision, work.offload)
        stages = Stages(
            stage_of=stages_of(layout),
            compute=tuple(c.compute for c in chunks),
            tp=tuple(c.tp for c in chunks),
            cp=tuple(c.cp for c in chunks),
            dp=tuple(each_s[u] for u in units),
            p2p_s=self._hops_s(layout, work),
            reduce_s=reduce_s,
            sync_s=self._tied_s(layout, work) + replicas.weights_s(units[0], held[0].spanning),
            optimizer_s=optimizer_s + self.network.all_reduce_s(self.topology.world(layout), 4),
        )
        return Draft(outline, between_ranks(stages, self._terms))

    def price(self, draft: Draft) -> Estimate:
        """Play the pipe and sum the terms."""
        stages, pipe = draft.stages, draft.stages.pipe
        outline = self.counted(draft.outline)
        alone = replace(pipe, reduce_s=(0.0,) * len(pipe.reduce_s))
        pipe_s = max(ends(alone, outline, self.orders))
        unhindered_s = max(ends(replace(alone, p2p_s=(0.0,) * len(pipe.p2p_s)), outline, self.orders))
        step_s = draft.step_s(self.orders)
        slow = max(range(len(pipe.stage_s)), key=lambda s: pipe.stage_s[s])
        by_term = (stages.compute, stages.tp, stages.cp, stages.dp)
        compute_s, tp_s, cp_s, dp_s = (pipe.by_stage([c.total for c in of]) for of in by_term)
        busy_s = outline.rounds * pipe.stage_s[slow]
        layout, fullest = outline.layout, outline.fullest
        return Estimate(
            step_s=step_s,
            tokens_s=self._tokens / step_s,
            mfu=self._flops / (step_s * layout.size * self.device.peak_flops[self.workload.precision]),
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
            verdict=memory.verdict(fullest.total, self.device_bytes),
            stage_s=compute_s,
        )

    def _parts(self, layout: Layout) -> _Parts:
        """What layouts with the same microbatch share."""
        degrees = (layout.dp, layout.pp, layout.cp, layout.tp, layout.cp_method)
        if degrees not in self._groups:
            self._groups[degrees] = self.topology.tp_group(layout), Ring(self.topology.cp_group(layout), layout.cp_method)
        group, ring = self._groups[degrees]
        # What weight gradients hide of tp shows at once where they are put off.
        practice = self._split if layout.tp > 1 and layout.schedule in SPLIT else self.practice
        key = (layout.tp, layout.micro_batch, layout.sp, layout.recompute, group, ring, practice is self._split)
        if key not in self._known:
            if layout.tp not in self._shares:
                self._shares[layout.tp] = share(self._tensors, layout.tp)
            work = Microbatch(
                model=self.model,
                share=self._shares[layout.tp],
                device=self.device,
                precision=self.workload.precision,
                seq_len=self.workload.seq_len,
                samples=layout.micro_batch,
                sp=layout.sp,
                recompute=layout.recompute,
                cp=layout.cp,
                offload=self.workload.offload,
                practice=practice,
            )
            of = in_chunks(pieces(work, self.network, group, ring), self._terms)
            self._known[key] = _Parts(work, of, kept(work))
        return self._known[key]

    def _boundaries(self, layout: Layout) -> tuple[int, ...]:
        of, stage_of = self._parts(layout).pieces, stages_of(layout)
        a_chunk = self.model.layers / layout.num_chunks
        layer_s = of.layer_s(min(1.0, recomputed(layout, self.model.layers) / a_chunk))
        key = (layer_s, of.embed.total_s, of.head.total_s, stage_of)
        if key not in self._cuts:
            extra = [0.0] * layout.num_chunks
            extra[0] += of.embed.total_s
            extra[-1] += of.head.total_s
            self._cuts[key] = cut([layer_s] * self.model.layers, extra, stage_of)
        return self._cuts[key]

    def _hops_s(self, layout: Layout, work: Microbatch) -> tuple[float, ...]:
        """From each chunk to the next; a way between stages that are not neighbours is as slow as the slowest hop."""
        inside = self.topology.hops_inside(layout)
        stage_of = stages_of(layout)
        hop_s = {near: self.network.p2p_s(work.residual_bytes, near) for near in (True, False)}
        return tuple(0.0 if a == b else hop_s[all(inside[min(a, b) : max(a, b)])] for a, b in pairwise(stage_of))

    def _reductions_s(self, layout: Layout, replicas: Replicas, units: Sequence[Unit]) -> tuple[float, ...]:
        """By chunk; stages with like chunks are alike."""
        out, known = [0.0] * len(units), dict[tuple[Unit, ...], tuple[float, ...]]()
        for chunks in chunks_of_stages(layout):
            own = tuple(units[c] for c in chunks)
            if own not in known:
                known[own] = replicas.reduce_s(own, layout.pp if layout.schedule == "interleaved" else 1)
            for chunk, seconds in zip(chunks, known[own], strict=True):
                out[chunk] = seconds + self._norms_s(layout, units[chunk].layers)
        return tuple(out)

    def _norms_s(self, layout: Layout, layers: int) -> float:
        """Under sp each tp rank has a part of the gradients of a chunk's norms."""
        if not layout.sp:
            return 0.0
        norm_bytes = GRADIENT_BYTES * 2 * layers * self.model.hidden
        return self.network.all_reduce_s(self.topology.tp_group(layout), norm_bytes)

    def _tied_s(self, layout: Layout, work: Microbatch) -> float:
        """First and last stage sum their gradients of a tied embedding."""
        if not self.model.tied or stages_of(layout)[0] == stages_of(layout)[-1]:
            return 0.0
        inside = all(self.topology.hops_inside(layout))
        return self.network.all_reduce_s(Group(2, 2 if inside else 1), GRADIENT_BYTES * work.share.tied_params)


def price(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: Layout) -> Estimate:
    """Predict one layout; its boundaries are cut by cost when it has none."""
    pricer = Pricer(model, workload, cluster)
    return pricer.price(pricer.draft(pricer.outline(layout)))


def _samples(layout: Layout, global_batch: int) -> tuple[int, ...]:
    """Samples of each microbatch of the busiest replica. Under zero 2 and 3 their sizes are nearly equal, which takes as long."""
    full, rest = divmod(split(global_batch, layout.dp, 0)[1], layout.micro_batch)
    return (layout.micro_batch,) * full + ((rest,) if rest else ())
