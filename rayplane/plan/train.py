"""The price of a training layout: from the parts of each stage, over the timeline, to an Estimate whose terms sum to the step.

parts (compute, network) ─▶ Stages: seconds per stage ─▶ ends of the pipe (timeline) ─▶ + gradient reduction + optimizer = step

step_s = compute + tp      what the slowest stage does for its microbatches
       + p2p               by how much transfers lengthen the pipe
       + bubble            the pipe's length beyond the slowest stage's own work
       + dp                gradient reduction that the last backward does not hide
       + optimizer         AdamW and the global norm
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayplane.plan import compute, memory
from rayplane.plan.catalog import slowest
from rayplane.plan.compute import Microbatch, Seconds
from rayplane.plan.draft import Draft, Outline, Stages, pipe_ends
from rayplane.plan.network import Group, Network
from rayplane.plan.partition import cut
from rayplane.plan.share import Share, parts, share, stage_params
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
class Piece:
    """A part of the model on one rank, for one microbatch: its compute, and the tp communication around it."""

    compute: Seconds
    tp: Seconds

    @property
    def total_s(self) -> float:
        """Everything, forward and backward."""
        return self.compute.total + self.tp.total


class Pricer:
    """Prices layouts of one model on one cluster, and remembers the parts that layouts share."""

    def __init__(self, model: ModelSpec, workload: Workload, cluster: ClusterSpec):
        self.model, self.workload, self.cluster = model, workload, cluster
        self.device = slowest(cluster)
        self.device_bytes = cluster.memory_bytes
        self.network = Network(cluster.links, self.device)
        self.topology = topology(cluster)
        self._tokens = workload.global_batch * workload.seq_len
        self._flops = model.flops_per_token(workload.seq_len) * self._tokens
        self._parts = parts(model)
        self._shares: dict[int, Share] = {}
        self._pieces: dict[tuple[int, int, Group], tuple[Piece, Piece, Piece]] = {}

    def outline(self, layout: Layout) -> Outline:
        """Cut the stages by cost unless the layout says how, and add up their memory."""
        if not layout.boundaries:
            layer, embed, head = self._pieces_of(layout)
            extra = [0.0] * layout.pp
            extra[0] += embed.total_s
            extra[-1] += head.total_s
            layout = replace(layout, boundaries=cut([layer.total_s] * self.model.layers, extra))
        samples = layout.microbatch_sizes(self.workload.global_batch, 0)
        by_stage = memory.stage_memory(self._microbatch(layout), layout, len(samples))
        return Outline(layout, samples, by_stage, max(stage.total for stage in by_stage))

    def draft(self, outline: Outline) -> Draft:
        """Add the seconds of each stage."""
        layout = outline.layout
        layer, embed, head = self._pieces_of(layout)
        work, pp = self._microbatch(layout), layout.pp
        counts = [(n, int(s == 0), int(s == pp - 1)) for s, n in enumerate(layout.boundaries)]
        compute_s = {c: _total(c, (layer.compute, embed.compute, head.compute)) for c in set(counts)}
        tp_s = {c: _total(c, (layer.tp, embed.tp, head.tp)) for c in set(counts)}
        params = {c: stage_params(work.share, self.model.tied, layout.boundaries, s) for s, c in enumerate(counts)}
        group, tied_s = self.topology.dp_group(layout), self._tied_s(layout, work)
        reduce_s = {c: self._exposed_s(params[c], group, compute_s[c].backward) + tied_s for c in params}
        hop_s = {inside: self.network.p2p_s(work.activation_bytes, inside) for inside in (True, False)}
        norm_s = self.network.all_reduce_s(self.topology.world(layout), 4)
        stages = Stages(
            compute=tuple(compute_s[c] for c in counts),
            tp=tuple(tp_s[c] for c in counts),
            p2p_s=tuple(hop_s[inside] for inside in self.topology.hops_inside(layout)),
            reduce_s=tuple(reduce_s[c] for c in counts),
            optimizer_s=compute.optimizer_s(self.device, max(params.values())) + norm_s,
        )
        return Draft(outline, stages)

    def price(self, draft: Draft) -> Estimate:
        """Play the pipe and sum the terms."""
        outline, stages, pipe = draft.outline, draft.stages, draft.stages.pipe
        pipe_s = max(pipe_ends(pipe, outline))
        unhindered_s = max(pipe_ends(replace(pipe, p2p_s=(0.0,) * len(pipe.p2p_s)), outline))
        step_s = draft.step_s
        slow = max(range(len(pipe.stage_s)), key=lambda s: pipe.stage_s[s])
        work_s, tp_s = outline.rounds * stages.compute[slow].total, outline.rounds * stages.tp[slow].total
        layout, fullest = outline.layout, outline.fullest
        return Estimate(
            step_s=step_s,
            tokens_s=self._tokens / step_s,
            mfu=self._flops / (step_s * layout.size * self.device.peak_flops[self.workload.precision]),
            bubble=max(0.0, 1.0 - outline.rounds * sum(pipe.stage_s) / (layout.pp * pipe_s)),
            time_s={
                "compute": work_s,
                "tp": tp_s,
                "p2p": pipe_s - unhindered_s,
                "dp": step_s - stages.optimizer_s - pipe_s,
                "optimizer": stages.optimizer_s,
                "bubble": max(0.0, unhindered_s - work_s - tp_s),
            },
            memory=fullest.terms(),
            memory_bytes=fullest.total,
            verdict=memory.verdict(fullest.total, self.device_bytes),
            stage_s=tuple(c.total for c in stages.compute),
        )

    def _microbatch(self, layout: Layout) -> Microbatch:
        tp, workload = layout.tp, self.workload
        if tp not in self._shares:
            self._shares[tp] = share(self._parts, tp)
        return Microbatch(self.model, self._shares[tp], self.device, workload.precision, workload.seq_len, layout.micro_batch)

    def _pieces_of(self, layout: Layout) -> tuple[Piece, Piece, Piece]:
        """Layer, embedding and head."""
        group = self.topology.tp_group(layout)
        key = (layout.tp, layout.micro_batch, group)
        if key not in self._pieces:
            self._pieces[key] = _pieces(self._microbatch(layout), self.network, group)
        return self._pieces[key]

    def _exposed_s(self, params: int, group: Group, last_backward_s: float) -> float:
        """What the last backward does not hide of the gradients' all-reduce."""
        num_bytes = memory.GRADIENT_BYTES * params
        whole_s = self.network.all_reduce_s(group, num_bytes)
        if not self.device.overlap:
            return whole_s
        tail_s = self.network.all_reduce_s(group, min(BUCKET_BYTES, num_bytes))
        return max(tail_s, OVERLAPPED_SLOWDOWN * whole_s - self.device.overlap * last_backward_s)

    def _tied_s(self, layout: Layout, work: Microbatch) -> float:
        """First and last stage sum their gradients of a tied embedding."""
        if not self.model.tied or layout.pp == 1:
            return 0.0
        inside = all(self.topology.hops_inside(layout))
        return self.network.all_reduce_s(Group(2, 2 if inside else 1), memory.GRADIENT_BYTES * work.share.embed_params)


def price(model: ModelSpec, workload: Workload, cluster: ClusterSpec, layout: Layout) -> Estimate:
    """Predict one layout; its boundaries are cut by cost when it has none."""
    pricer = Pricer(model, workload, cluster)
    return pricer.price(pricer.draft(pricer.outline(layout)))


def _pieces(work: Microbatch, network: Network, group: Group) -> tuple[Piece, Piece, Piece]:
    """Layer, embedding and head. A column-row pair all-reduces its output forward and its input's gradient backward, twice a layer;
    the embedding sums forward, the head backward, and the loss over a cut vocabulary needs three numbers per token."""
    if group.size == 1:
        none = Seconds(0.0, 0.0)
        return Piece(compute.layer(work), none), Piece(compute.embedding(work), none), Piece(compute.head(work), none)
    whole_s = network.all_reduce_s(group, work.activation_bytes)
    numbers_s = 3 * network.all_reduce_s(group, 4 * work.tokens)
    layer, embed, head = compute.layer(work), compute.embedding(work), compute.head(work)
    jitter = work.device.jitter
    return (
        Piece(layer, Seconds(2 * whole_s + jitter * layer.forward, 2 * whole_s + jitter * layer.backward)),
        Piece(embed, Seconds(whole_s, 0.0)),
        Piece(head, Seconds(numbers_s + jitter * head.forward, whole_s + jitter * head.backward)),
    )


def _total(counts: tuple[int, int, int], seconds: tuple[Seconds, Seconds, Seconds]) -> Seconds:
    forward = sum(n * s.forward for n, s in zip(counts, seconds, strict=True))
    return Seconds(forward, sum(n * s.backward for n, s in zip(counts, seconds, strict=True)))
