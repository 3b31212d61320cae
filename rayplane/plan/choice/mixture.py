"""What a plan makes of a cluster with several kinds of device, in a sentence.

stage 0 (9 layers) on a100-80gb, stage 1 (23 layers) on h100-sxm: each as many as its devices compute in like time
"""

from __future__ import annotations

from itertools import groupby

from rayplane.spec.plan import Plan


def kinds_note(plan: Plan) -> str:
    """Which stages are on which kind, or why all go at one pace; empty where all devices are alike."""
    kinds = sorted({node.kind for node in plan.cluster.nodes})
    used_nodes = {slot.node for slot in plan.placement.slots}
    used = sorted({node.kind for node in plan.cluster.nodes if node.name in used_nodes})
    if len(kinds) == 1:
        return ""
    if len(used) == 1:
        idle = ", ".join(kind for kind in kinds if kind not in used)
        return f"runs on {used[0]} alone; {idle} would slow it down or is not needed"
    if not plan.estimate.stage_kinds:
        return (
            f"devices of several kinds ({', '.join(used)}) hold replicas with equal parts of the batch: priced as the slowest, "
            f"with the memory of the smallest"
        )
    return ", ".join(_runs(plan)) + ": layers by how fast and how large the devices of each stage are"


def _runs(plan: Plan) -> list[str]:
    layout, out = plan.layout, []
    for kind, same in groupby(range(layout.pp), key=lambda stage: plan.estimate.stage_kinds[stage]):
        stages = list(same)
        layers = sum(layout.boundaries[c] for stage in stages for c in layout.chunks_of_stage(stage))
        named = f"stage {stages[0]}" if len(stages) == 1 else f"stages {stages[0]}-{stages[-1]}"
        out.append(f"{named} ({layers} layer{'s' * (layers != 1)}) on {kind}")
    return out
