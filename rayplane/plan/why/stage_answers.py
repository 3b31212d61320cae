"""Answers about replicas, stages and memory: data and pipeline parallelism, what fits, and serving, each from this plan's numbers."""

from __future__ import annotations

import math

from rayplane.plan.choice.report import seconds, size
from rayplane.plan.step.memory import TIGHT, gigabytes
from rayplane.plan.why.facts import Facts

TOO_LARGE = "does not fit"
"""How a refusal for want of memory begins."""
SERVED_BYTES = 2
"""Of a weight, and of a key or value, that is served in bf16."""


def what_dp_buys(facts: Facts) -> str:
    """Throughput, not latency."""
    study, layout, e = facts.study, facts.layout, facts.study.plan.estimate
    _, parts = facts.microbatch(layout)
    alone_s = parts.chunk(study.model.layers, 0, True, True).total_s
    throughput = f"{layout.dp} replica{'s' if layout.dp > 1 else ''} give{'' if layout.dp > 1 else 's'} {e.tokens_s:,.0f} tokens/s"
    latency = f"a microbatch of {layout.micro_batch} takes {seconds(alone_s)} through its layers however many there are"
    dp = facts.axis("dp")
    if dp is None:
        return f"Throughput, not latency: {throughput}; {latency}. TP and PP are for what does not fit, or is too slow."
    sent = size(sum(t.sent_bytes for t in dp.traffic))
    return (
        f"Throughput, not latency: {throughput}, {e.tokens_s / layout.dp:,.0f} each; {latency}. For that a rank sends {sent} of "
        f"gradients and weights a step, {seconds(dp.comm_s)}, of which {seconds(dp.exposed_s)} are not hidden. TP and PP are for "
        f"what does not fit, or is too slow: {facts.finding('dp-or-tp')}."
    )


def what_does_not_fit(facts: Facts) -> str:
    """Refused with the reason and what would do."""
    found, capacity = facts.study.plan, facts.study.pricer.device_bytes
    large = [r for r in found.rejected if r.reason.startswith(TOO_LARGE)]
    e = found.estimate
    terms = ", ".join(f"{name} {gigabytes(n)}" for name, n in sorted(e.memory.items(), key=lambda m: -m[1])[:3])
    text = (
        f"{found.layout} takes {gigabytes(e.memory_bytes)} of {gigabytes(capacity)} a device ({e.memory_bytes / capacity:.0%}, "
        f"{e.verdict}; tight is above {TIGHT:.0%}): {terms}"
    )
    if not large:
        return f"{text}. None of the layouts that were looked at was refused for its memory."
    example = large[0]
    return f"{text}. {len(large)} layouts were refused for their memory; the first, {example.layout}, {example.reason}."


def what_serving_dp_is(facts: Facts) -> str:
    """A persistent service."""
    study, model = facts.study, facts.study.model
    weights = SERVED_BYTES * model.num_params
    token = 2 * model.layers * model.kv_heads * model.head_dim * SERVED_BYTES
    usable = TIGHT * study.pricer.device_bytes
    devices = math.ceil(weights / usable)
    tokens = int((devices * usable - weights) // token)
    length, replicas = study.workload.seq_len, study.plan.cluster.num_devices // devices
    cluster = _devices(study.plan.cluster.num_devices)
    return (
        f"A service that stays: no gradients and no common step, but batches that change with every request, a KV cache, and balance "
        f"request by request. In bf16 a replica of this model has {size(weights)} of weights on {_devices(devices)}; a token adds "
        f"{size(token)} of keys and values, so what is left holds {tokens:,} tokens: {tokens // length:,} sequences of {length:,}. "
        f"Replicas that {cluster} can hold: {replicas:,}, each with a queue of its own."
    )


def what_a_pipe_costs(facts: Facts) -> str:
    """The bubble, and a cut by cost."""
    study, pipe = facts.study, facts.pipe
    _, parts = facts.microbatch(facts.layout)
    layer_s, embed_s, head_s = parts.layer.total_s, parts.embed.total_s, parts.head.total_s
    cost = (
        f"Stages are cut by cost: a layer takes {seconds(layer_s)}, the embedding {seconds(embed_s)}, head and loss {seconds(head_s)}, "
        f"as much as {head_s / layer_s:.1f} layers"
    )
    if pipe is None:
        return f"{cost}. On {_devices(study.layout.size)} there are no stages to cut."
    m, layout = pipe.layout.num_microbatches(study.workload.global_batch), pipe.layout
    simple = (layout.pp - 1) / m / layout.vpp
    return (
        f"{cost}. {'The plan' if layout == study.layout else 'The best with stages'}, {layout}, idles {pipe.estimate.bubble:.1%}; "
        f"(p-1)/m{f'/{layout.vpp}' if layout.vpp > 1 else ''} on top of the work would be {simple:.1%} for {m} microbatches. "
        f"By microbatches: {facts.finding('microbatches')}. By schedule: {facts.finding('vpp')}."
    )


def how_imbalance_is_mended(facts: Facts) -> str:
    """Measured per stage, mended by moving boundaries."""
    pipe = facts.pipe
    if pipe is None:
        return f"One stage has nothing to balance; layers on it: {facts.study.model.layers}."
    stage_s, layout = pipe.estimate.stage_s, pipe.layout
    slow, fast = (f(range(len(stage_s)), key=lambda s: stage_s[s]) for f in (max, min))
    mean_s = sum(stage_s) / len(stage_s)
    hops = facts.study.pricer.draft(facts.study.pricer.outline(layout)).stages.p2p_s
    return (
        f"By the seconds that each stage computes in a microbatch. {layout}: stage {slow} {seconds(stage_s[slow])}, stage {fast} "
        f"{seconds(stage_s[fast])}; the slowest is {stage_s[slow] / mean_s - 1:.1%} above the mean, and a boundary is moved by whole "
        f"layers until no move helps. A stage more is a hop more for each sample: {seconds(max(hops, default=0.0))} each way."
    )


def _devices(count: int) -> str:
    return f"{count:,} device{'s' if count > 1 else ''}"
