"""The price of a training layout: from the parts of each chunk, over the timeline, to an Estimate whose terms sum to the step.

pieces (compute, network) ─▶ Stages: seconds per chunk ─▶ ends of the stages (timeline) ─▶ + the step's end = step

step_s = compute + tp + cp what the slowest stage does for its microbatches
       + p2p               by how much transfers lengthen the pipe
       + bubble            the pipe's length beyond the slowest stage's own work
       + dp                gradient reduction that the last backward does not hide; under zero 1 the gathering of weights
       + optimizer         AdamW and the global norm
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from rayplane.plan import compute, memory
from rayplane.plan.catalog import slowest
from rayplane.plan.compute import Microbatch
from rayplane.plan.draft import SPLIT, Draft, Outline, Stages, ends
from rayplane.plan.network import Group, Network
from rayplane.plan.order import Orders
from rayplane.plan.partition import cut
from rayplane.plan.pieces import Piece, Pieces, Ring, pieces
from rayplane.plan.pipe import stages_of
from rayplane.plan.recurrence import RECURRENCES
from rayplane.plan.share import Share, chunk_params, parts, share
from rayplane.plan.topology import topology
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Estimate, Workload

BUCKET_BYTES = 25_000_000
"""The last gradient bucket has no backward left to hide behind (the size that torch's DDP uses)."""
OVERLAPPED_SLOWDOWN = 1.22
"""A collective beside compute takes 15-30% longer."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """One microbatch on a rank: what it is, what it takes in time, and in memory."""

    work: Microbatch
    pieces: Pieces
    kept: memory.Kept


class Pricer:
    """Prices layouts of one model on one cluster, and remembers the parts that layouts share."""

    def __init__(self, model: ModelSpec, workload: Workload, cluster: ClusterSpec):
        self.model, self.workload, self.cluster = model, workload, cluster
        self.device = slowest(cluster)
        self.device_bytes = cluster.memory_bytes
        self.network = Network(cluster.links, self.device)
        self.topology = topology(cluster)
        self.orders = Orders()
        self._tokens = workload.global_batch * workload.seq_len
        self._flops = model.flops_per_token(workload.seq_len) * self._tokens
        self._tensors = parts(model)
        self._shares: dict[int, Share] = {}
        self._known: dict[tuple[int, int, bool, str, Group, Ring], _Parts] = {}
        self._cuts: dict[tuple[float, float, float, tuple[int, ...]], tuple[int, ...]] = {}

    def outline(self, layout: Layout) -> Outline:
        """Cut the chunks by cost unless the layout says how, and add up their memory, at least."""
        if not layout.boundaries:
            layout = replace(layout, boundaries=self._boundaries(layout))
        samples = layout.microbatch_sizes(self.workload.global_batch, 0)
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

    def draft(self, outline: Outline) -> Draft:
        """Add the seconds of each chunk."""
        layout = outline.layout
        of, work, last = self._parts(layout).pieces, self._parts(layout).work, layout.num_chunks - 1
        chunks = [of.chunk(n, c == 0, c == last) for c, n in enumerate(layout.boundaries)]
        params = [chunk_params(work.share, layout, c) for c in range(layout.num_chunks)]
        stage_params = [0] * layout.pp
        for stage, n in zip(stages_of(layout), params, strict=True):
            stage_params[stage] += n
        fullest = max(stage_params)
        reduce_s = {n: self._reduce_s(layout, n, chunk) for n, chunk in dict(zip(params, chunks, strict=True)).items()}
        stages = Stages(
            stage_of=stages_of(layout),
            compute=tuple(c.compute for c in chunks),
            tp=tuple(c.tp for c in chunks),
            cp=tuple(c.cp for c in chunks),
            p2p_s=self._hops_s(layout, work),
            reduce_s=tuple(reduce_s[n] + self._norms_s(layout, layers) for n, layers in zip(params, layout.boundaries, strict=True)),
            sync_s=self._tied_s(layout, work) + self._gather_s(layout, fullest),
            optimizer_s=compute.optimizer_s(self.device, _share_of(fullest, layout))
            + self.network.all_reduce_s(self.topology.world(layout), 4),
        )
        return Draft(outline, stages)

    def price(self, draft: Draft) -> Estimate:
        """Play the pipe and sum the terms."""
        stages, pipe = draft.stages, draft.stages.pipe
        outline = self.counted(draft.outline)
        alone = replace(pipe, reduce_s=(0.0,) * len(pipe.reduce_s))
        pipe_s = max(ends(alone, outline, self.orders))
        unhindered_s = max(ends(replace(alone, p2p_s=(0.0,) * len(pipe.p2p_s)), outline, self.orders))
        step_s = draft.step_s(self.orders)
        slow = max(range(len(pipe.stage_s)), key=lambda s: pipe.stage_s[s])
        compute_s, tp_s, cp_s = (pipe.by_stage([c.total for c in of]) for of in (stages.compute, stages.tp, stages.cp))
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
                "dp": step_s - stages.optimizer_s - pipe_s,
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
        group = self.topology.tp_group(layout)
        ring = Ring(self.topology.cp_group(layout), layout.cp_method)
        key = (layout.tp, layout.micro_batch, layout.sp, layout.recompute, group, ring)
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
            )
            self._known[key] = _Parts(work, pieces(work, self.network, group, ring), memory.kept(work))
        return self._known[key]

    def _boundaries(self, layout: Layout) -> tuple[int, ...]:
        of, stage_of = self._parts(layout).pieces, stages_of(layout)
        key = (of.layer.total_s, of.embed.total_s, of.head.total_s, stage_of)
        if key not in self._cuts:
            extra = [0.0] * layout.num_chunks
            extra[0] += of.embed.total_s
            extra[-1] += of.head.total_s
            self._cuts[key] = cut([of.layer.total_s] * self.model.layers, extra, stage_of)
        return self._cuts[key]

    def _hops_s(self, layout: Layout, work: Microbatch) -> tuple[float, ...]:
        """From each chunk to the next; a way between stages that are not neighbours is as slow as the slowest hop."""
        inside = self.topology.hops_inside(layout)
        stage_of = stages_of(layout)
        hop_s = {near: self.network.p2p_s(work.residual_bytes, near) for near in (True, False)}
        return tuple(0.0 if a == b else hop_s[all(inside[min(a, b) : max(a, b)])] for a, b in pairwise(stage_of))

    def _reduce_s(self, layout: Layout, params: int, chunk: Piece) -> float:
        """What the chunk's last backward does not hide of its gradients' reduction."""
        if layout.dp * layout.cp == 1:
            return 0.0
        group, num_bytes = self.topology.dp_group(layout), memory.GRADIENT_BYTES * params
        collective_s = self.network.all_gather_s if layout.zero else self.network.all_reduce_s
        whole_s = collective_s(group, num_bytes)
        if not self.device.overlap:
            return whole_s
        last_s = chunk.compute.weight_grad if layout.schedule in SPLIT else chunk.compute.backward
        tail_s = collective_s(group, min(BUCKET_BYTES, num_bytes))
        return max(tail_s, OVERLAPPED_SLOWDOWN * whole_s - self.device.overlap * last_s)

    def _norms_s(self, layout: Layout, layers: int) -> float:
        """Under sp each tp rank has a part of the gradients of a chunk's norms."""
        if not layout.sp:
            return 0.0
        norm_bytes = memory.GRADIENT_BYTES * 2 * layers * self.model.hidden
        return self.network.all_reduce_s(self.topology.tp_group(layout), norm_bytes)

    def _gather_s(self, layout: Layout, params: int) -> float:
        """Under zero 1 the next forward waits for the weights that other replicas updated."""
        if not layout.zero:
            return 0.0
        return self.network.all_gather_s(self.topology.dp_group(layout), memory.WEIGHT_BYTES[self.workload.precision] * params)

    def _tied_s(self, layout: Layout, work: Microbatch) -> float:
        """First and last stage sum their gradients of a tied embedding."""
        if not self.model.tied or stages_of(layout)[0] == stages_of(layout)[-1]:
            return 0.0
        inside = all(self.topology.hops_inside(layout))
        return self.network.all_reduce_s(Group(2, 2 if inside else 1), memory.GRADIENT_BYTES * work.share.tied_params)


def price(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: Layout) -> Estimate:
    """Predict one layout; its boundaries are cut by cost when it has none."""
    pricer = Pricer(model, workload, cluster)
    return pricer.price(pricer.draft(pricer.outline(layout)))


def _share_of(params: int, layout: Layout) -> int:
    """Parameters that one rank updates."""
    return math.ceil(params / (layout.dp * layout.cp)) if layout.zero else params
