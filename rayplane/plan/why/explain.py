"""Why a plan is as it is: everything that `rayplane explain` tells, from a model, a workload and a cluster.

study ──▶ waterfalls ─ axes ─ sweeps ─ stages ─ timeline ─ what-ifs ──▶ answers ──▶ Explanation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rayplane.plan.step.draft import Draft, timeline
from rayplane.plan.step.memory import gigabytes
from rayplane.plan.step.profile import in_words
from rayplane.plan.why.answers import answers
from rayplane.plan.why.bounds import axes
from rayplane.plan.why.changed import Setting
from rayplane.plan.why.explanation import Explanation, StageShare
from rayplane.plan.why.facts import Facts
from rayplane.plan.why.study import Study, study
from rayplane.plan.why.sweeps import sweeps
from rayplane.plan.why.waterfalls import waterfalls
from rayplane.plan.why.whatif import setting_of, what_if
from rayplane.spec.cluster import ClusterSpec
from rayplane.spec.job import LayoutSection
from rayplane.spec.model import ModelSpec
from rayplane.spec.plan import Workload

MOST_ACTIONS = 2000
"""More of compute are too many to draw: then only some of the microbatches are shown."""
SHOWN_PER_STAGE = 3


def explain(
    model: ModelSpec,
    workload: Workload,
    cluster: ClusterSpec,
    section: LayoutSection | None,
    what_ifs: Sequence[str] = (),
    name: str = "",
) -> Explanation:
    """Plan, and say why. Raises what `search.plan` raises, and SpecError for a what-if that cannot be read or done."""
    for written in what_ifs:
        setting_of(written, Setting(cluster, workload))
    of = study(model, workload, cluster, section)
    facts = Facts(of, axes(of), sweeps(of), stages(of))
    drawn, shown = _drawn(of)
    return Explanation(
        name=name or model.name,
        model=model_in_words(model, workload),
        cluster=cluster_in_words(cluster),
        plan=of.plan,
        waterfalls=waterfalls(of),
        axes=facts.axes,
        sweeps=facts.sweeps,
        stages=facts.stages,
        timeline=timeline(drawn),
        what_ifs=tuple(what_if(of, written) for written in what_ifs),
        answers=answers(facts),
        figures=in_words(cluster, workload.precision),
        shown_microbatches=shown,
    )


def stages(of: Study) -> tuple[StageShare, ...]:
    """Each stage of the winner: on which devices, and what it computes and holds there."""
    layout, cluster = of.layout, of.plan.cluster
    nodes = {n.name: n for n in cluster.nodes}
    where: list[dict[str, int]] = [{} for _ in range(layout.pp)]
    for slot in of.plan.placement.slots:
        node = nodes[slot.node]
        where[slot.stage][node.kind] = min(node.memory_bytes, where[slot.stage].get(node.kind, node.memory_bytes))
    return tuple(
        StageShare(
            stage=stage,
            layers=tuple(layout.boundaries[c] for c in layout.chunks_of_stage(stage)),
            kind=", ".join(sorted(where[stage])),
            compute_s=of.plan.estimate.stage_s[stage],
            memory=tuple(memory.terms().items()),
            memory_bytes=memory.total,
            capacity_bytes=min(where[stage].values()),
        )
        for stage, memory in enumerate(of.pricer.by_stage(of.draft.outline))
    )


def model_in_words(model: ModelSpec, workload: Workload) -> str:
    """`small: 1.1 B parameters, 16 layers of 2048, …; 64 x 4,096 tokens a step in bf16`."""
    heads = f"{model.heads} heads" + (f" with {model.kv_heads} of KV" if model.kv_heads < model.heads else "")
    billions = f"{model.num_params / 1e9:.3g} B" if model.num_params >= 1e9 else f"{model.num_params / 1e6:.3g} M"
    return (
        f"{model.name}: {billions} parameters, {model.layers} layers of {model.hidden}, {heads}, vocabulary {model.vocab:,}; "
        f"{workload.global_batch} x {workload.seq_len:,} tokens a step in {workload.precision}"
    )


def cluster_in_words(cluster: ClusterSpec) -> str:
    """`64 x h100-sxm (80.0 GB) in 8 islands of 8; 450 GB/s a device within an island, 50 across`."""
    kinds = Counter[tuple[str, int]]()
    for node in cluster.nodes:
        kinds[node.kind, node.memory_bytes] += node.devices
    devices = " and ".join(f"{count} x {kind} ({gigabytes(memory)})" for (kind, memory), count in kinds.items())
    islands = Counter(sum(n.devices for n in nodes) for nodes in cluster.islands.values())
    shape = " and ".join(f"{count} island{'s' if count > 1 else ''} of {size}" for size, count in islands.items())
    links = cluster.links
    return f"{devices} in {shape}; {links.island.gbytes_s:g} GB/s a device within an island, {links.fabric.gbytes_s:g} across"


def _drawn(of: Study) -> tuple[Draft, int]:
    """What the timeline shows: the step, or one of fewer microbatches where all would be too many."""
    outline, layout = of.draft.outline, of.layout
    m = len(outline.samples)
    most = max(1, MOST_ACTIONS // (3 * layout.num_chunks))
    if m <= most:
        return of.draft, m
    few = min(m, max(most, SHOWN_PER_STAGE * layout.pp if layout.pp > 1 else 1))
    return replace(of.draft, outline=replace(outline, samples=outline.samples[:few])), few
