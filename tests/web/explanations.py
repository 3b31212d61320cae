"""Explanations made up for the pages' tests: numbers that are told apart, so that a page which drops one is caught."""

from dataclasses import replace
from functools import cache

from rayplane.plan.step.timeline import Timeline, play
from rayplane.plan.why.explanation import Answer, Axis, Explanation, Point, StageShare, Sweep, Traffic, Waterfall, WhatIf
from rayplane.spec.cluster import ClusterSpec, Link, Links, Node
from rayplane.spec.layout import Layout, even_boundaries
from rayplane.spec.passes import build
from rayplane.spec.plan import Candidate, Estimate, Placement, Plan, Rejected
from rayplane.spec.schedule import Action, Op

COST_S = {Op.FORWARD: 0.010, Op.BACKWARD: 0.021, Op.INPUT_GRAD: 0.011, Op.WEIGHT_GRAD: 0.010, Op.REDUCE: 0.05, Op.STEP: 0.03}
TERMS = (("compute", 1.83), ("tp", 0.412), ("dp", 0.0711), ("p2p", 0.0233), ("optimizer", 0.031), ("bubble", 0.2926))
GB = 10**9


def cost(action: Action) -> float:
    """Seconds: a stage later in the pipe is a little slower, a transfer takes a millisecond."""
    return COST_S.get(action.op, 0.001) * (1 + 0.02 * action.chunk)


@cache
def timeline(stages: int, microbatches: int, schedule: str = "1f1b") -> Timeline:
    """A step as the planner plays it."""
    vpp = 2 if schedule in ("interleaved", "zbv") else 1
    return play(build(Layout(pp=stages, vpp=vpp, schedule=schedule), microbatches), cost)


def estimate(terms: tuple[tuple[str, float], ...], memory_bytes: int, verdict: str = "fits") -> Estimate:
    step_s = sum(value for _, value in terms)
    memory = {"weights": memory_bytes // 4, "activations": memory_bytes - memory_bytes // 4}
    return Estimate(step_s, 4_194_304 / step_s, 0.437, 0.11, dict(terms), memory, memory_bytes, verdict)


def explanation(stages: int = 4, microbatches: int = 16, name: str = "made-up", schedule: str = "1f1b") -> Explanation:
    """One with everything a page can show."""
    chunks = stages * (2 if schedule in ("interleaved", "zbv") else 1)
    winner = Layout(dp=2, pp=stages, tp=8, sp=True, vpp=chunks // stages, schedule=schedule, boundaries=even_boundaries(80, chunks))
    second, third = replace(winner, dp=4, tp=4), replace(winner, dp=1, cp=2)
    slower = (("compute", 1.85), ("tp", 0.222), ("dp", 0.312), ("p2p", 0.0411), ("optimizer", 0.0521), ("bubble", 0.3333))
    slowest = (("compute", 1.9), ("tp", 0.4), ("cp", 0.345), ("dp", 0.1), ("p2p", 0.05), ("optimizer", 0.06), ("bubble", 0.4))
    ours, theirs, last = estimate(TERMS, 61 * GB), estimate(slower, 71 * GB), estimate(slowest, 75 * GB, "tight")
    nodes = tuple(Node(f"n{i}", 8, "h100-sxm", f"n{i}", 80 * GB) for i in range(2 * stages))
    cluster = ClusterSpec(nodes, Links(Link(450.0, 3.0), Link(64.0, 5.0), Link(50.0, 8.0)))
    refused = Rejected(Layout(dp=16), "does not fit: needs 131.7 GB of 80.0 GB, its optimizer's state alone 97.2 GB; zero: 1 would")
    runners = (Candidate(second, theirs), Candidate(third, last))
    plan = Plan(winner, microbatches, Placement(()), ours, cluster, runners, (refused, replace(refused, layout=Layout(dp=8))))
    return Explanation(
        name,
        "Llama made up: 80 layers of 8192, 64 heads, 8 KV heads, vocabulary 128,256; 1,024 samples of 4,096 tokens in bf16",
        f"{2 * stages} nodes of 8 h100-sxm; island 450 GB/s, fabric 50 GB/s per device",
        plan,
        (
            Waterfall(winner, ours.step_s, TERMS, ours.memory_bytes, "fits", ""),
            Waterfall(second, theirs.step_s, slower, theirs.memory_bytes, "fits", "dp reduces 4.4 times the bytes over the fabric"),
            Waterfall(third, last.step_s, slowest, last.memory_bytes, "tight", "cp sends keys and values that tp would not"),
        ),
        axes(),
        sweeps(winner),
        tuple(stage(i, stages) for i in range(stages)),
        timeline(stages, microbatches, schedule),
        what_ifs(winner, second),
        tuple(Answer(i, f"Question {i} of them?", f"Because of figure {i * 1.37:.2f}, as measured.") for i in range(1, 14)),
        "GEMM and attention measured on 2026-11-02; links of the table (h100-sxm); launches assumed 5 µs",
    )


def axes() -> tuple[Axis, ...]:
    """One that compute hides, one that it does not."""
    half = "2 x 4096 x 8192 x 2 B = 134 MB; 2N(p-1)/p = 235 MB"
    tp = (
        Traffic("all-reduce of a layer's output, forward", 640, 134_217_728, 150_323_855_360, half),
        Traffic("all-reduce of its input's gradient, backward", 640, 134_217_728, 150_323_855_360, half),
    )
    dp = (Traffic("reduce-scatter of the gradients", 1, 2_205_000_000, 1_102_500_000, "1.1e9 x 4 B / 2 = 2.2 GB"),)
    return (
        Axis("tp", 8, "island", 450.0, tp, 0.668, 0.412, 1.83, "compute", "668 ms < 1.83 s, so compute binds; both of the table"),
        Axis("dp", 2, "fabric", 6.25, dp, 2.176, 0.0711, 1.83, "communication", "2.18 s > 1.83 s: the fabric binds; assumed"),
    )


def sweeps(layout: Layout) -> tuple[Sweep, ...]:
    """One with a turning point and a missing value, one with long labels."""
    steps = ((1, None), (2, 4.21), (4, 2.97), (8, 2.66), (16, 3.913))
    tp = tuple(
        Point(x, str(x), layout, None, (), None, None, "does not fit: 211 GB of 80 GB")
        if s is None
        else Point(x, str(x), layout, s, (("compute", 1.8 + 1 / x), ("tp", 0.05 * x), ("bubble", s / 9)), 0.11, 60 * GB, "")
        for x, s in steps
    )
    names = ("dp16", "dp8 tp2", "dp4 tp4", "dp2 tp8")
    mixed = tuple(
        Point(i, n, layout, 3.1 + 0.37 * abs(i - 1), (("dp", 1 / (i + 1)), ("tp", 0.2 * i)), None, 50 * GB, "")
        for i, n in enumerate(names)
    )
    return (
        Sweep("tp", "Is a larger tp faster?", "tp", tp, "tp pays up to 8: at 16 its collectives leave the island"),
        Sweep(
            "dp-or-tp", "Of the same devices, dp or tp?", "layout", mixed, "dp8 tp2 is the fastest: more tp sends more than dp saves"
        ),
    )


def stage(index: int, stages: int) -> StageShare:
    """Earlier stages hold more activations, the last one logits."""
    last = index == stages - 1
    memory = {"weights": 9 * GB, "gradients": 9 * GB, "optimizer": 14 * GB, "activations": 28 * GB * (stages - index) // stages}
    memory |= {"logits": 4 * GB if last else 0, "fixed": GB}
    return StageShare(index, (80 // stages,), "h100-sxm", 0.0312, tuple(memory.items()), sum(memory.values()), 80 * GB)


def what_ifs(same: Layout, other: Layout) -> tuple[WhatIf, ...]:
    """One that helps, one under which the layout no longer runs."""
    return (
        WhatIf("nic=2x", "fabric 50 → 100 GB/s per device", 2.59, other, 2.51, "the layout changes: dp becomes cheap enough for tp 4"),
        WhatIf("hbm=40", "80 → 40 GB a device", None, other, 3.47, "today's layout no longer fits; the best that does is 30.5% slower"),
        WhatIf("devices=+8", "64 → 72 devices", 2.66, same, 2.66, "nothing changes: 72 devices do not divide the batch better"),
    )
