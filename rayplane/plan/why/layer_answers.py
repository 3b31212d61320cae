"""Answers about what happens inside layers: tensor, sequence and context parallelism, each sentence from this plan's numbers."""

from __future__ import annotations

from dataclasses import replace

from rayplane.plan.choice.report import seconds, size
from rayplane.plan.step.activations import kept
from rayplane.plan.step.share import parts, share
from rayplane.plan.why.facts import Facts
from rayplane.spec.layout import split, zigzag


def what_tp_sends(facts: Facts) -> str:
    """Column and row parallel."""
    layout = facts.with_tp
    work, _ = facts.microbatch(layout)
    if layout.tp == 1:
        return f"The model has {facts.study.model.heads} head; tp has nothing to cut."
    messages = facts.messages(layout, "tp")
    sent, layers = sum(m.sent_bytes for m in messages), facts.study.model.layers
    each = f"{work.tokens:,} tokens x {work.model.hidden} x {work.activation_bytes // (work.tokens * work.model.hidden)} B"
    halves = "a reduce-scatter and an all-gather (sp)" if layout.sp else "an all-reduce"
    return (
        f"q, k, v, gate and up cut their output dim and send nothing forward; o and down cut their input dim, so their partial sums "
        f"({each} = {size(work.activation_bytes)}) are summed forward, and the inputs' gradients of the former backward: per layer and "
        f"microbatch 2 sums forward and 2 backward, each {halves}. {_named(facts, layout.tp)}over {layers} layers a rank sends "
        f"{size(sent)} a step."
    )


def how_attention_is_cut(facts: Facts) -> str:
    """By heads."""
    model, tp = facts.study.model, facts.with_tp.tp
    counts = [split(model.heads, tp, i)[1] for i in range(tp)]
    held = share(parts(model), tp).kv_width // model.head_dim
    cut = f"{counts[0]} each" if counts[0] == counts[-1] else f"{counts[0]} on {counts.count(counts[0])} ranks, else {counts[-1]}"
    copies = "" if tp * held <= model.kv_heads else "; some are on several ranks, which sum their gradients once a step"
    return (
        f"By query heads: {model.heads} over tp {tp} are {cut}. Each KV head serves {model.group} of them and goes with them: a rank "
        f"has at most {held} of the {model.kv_heads} KV heads{copies}."
    )


def is_more_tp_faster(facts: Facts) -> str:
    """The turning point."""
    if facts.study.max_tp == 1:
        return f"The model has {facts.study.model.heads} head; tp has nothing to cut."
    alone = f"one device has nothing to choose, it takes {seconds(facts.study.plan.estimate.step_s)}"
    steps = facts.finding("dp-or-tp") if facts.layout.size > 1 else alone
    return f"No: {facts.finding('tp')}. For whole steps on the same devices: {steps}."


def what_an_all_reduce_is(facts: Facts) -> str:
    """Two halves, and what sp does with them."""
    layout, network = facts.with_tp, facts.study.pricer.network
    if layout.tp == 1:
        n = 4 * facts.study.model.num_params
        return f"A reduce-scatter and an all-gather of the same bytes: of {size(n)} of gradients over 2 ranks each sends {size(n / 2)}."
    plain, cut = (facts.microbatch(replace(layout, sp=sp))[0] for sp in (False, True))
    group, n = facts.tp_group(layout), plain.activation_bytes
    p = group.size
    half_s, whole_s = network.all_gather_s(group, n), network.all_reduce_s(group, n)
    keeps, with_sp = kept(plain).layer, kept(cut).layer
    return (
        f"A reduce-scatter and an all-gather of the same bytes: of {size(n)} over tp {p} each sends {size(n * (p - 1) / p)} and takes "
        f"{seconds(half_s)}, the whole {size(2 * n * (p - 1) / p)} and {seconds(whole_s)}. sp uses the halves apart: a layer then "
        f"keeps {size(with_sp)} of a microbatch instead of {size(keeps)}, for two more all-gathers in backward."
    )


def what_a_ring_sends(facts: Facts) -> str:
    """2N(p-1)/p."""
    told = []
    for axis in facts.axes:
        heavy = max(axis.traffic, key=lambda t: t.sent_bytes)
        told.append(f"{axis.name} {axis.size}: {heavy.what}: {heavy.arithmetic}")
    if told:
        return "2N(p-1)/p bytes a rank for an all-reduce of N bytes, half of that for either half. Here " + ". ".join(told) + "."
    params = facts.study.model.num_params
    return (
        "2N(p-1)/p bytes a rank for an all-reduce of N bytes. One device sends nothing; on two, gradients of "
        f"{params:,} parameters x 4 B = {size(4 * params)} would be {size(4 * params)} a rank and step."
    )


def when_communication_binds(facts: Facts) -> str:
    """Bytes over bandwidth against FLOPs over the achievable rate."""
    layout, network = facts.with_tp, facts.study.pricer.network
    work, of = facts.microbatch(layout)
    sums = []
    if layout.tp > 1:
        group = facts.tp_group(layout)
        comm_s = 4 * network.all_reduce_s(group, work.activation_bytes)
        sent = 8 * work.activation_bytes * (layout.tp - 1) / layout.tp
        compute_s = of.layer.compute.total
        which = "communication" if comm_s > compute_s else "compute"
        sums.append(
            f"A layer under tp {layout.tp}, one microbatch: {size(sent)} sent in {seconds(comm_s)} against {seconds(compute_s)} of "
            f"compute: {which} binds; it would be communication below {sent / compute_s / 1e9:.3g} GB/s"
        )
    for axis in facts.axes:
        share = axis.exposed_s / facts.study.plan.estimate.step_s
        sums.append(f"{axis.name} {axis.size} ({axis.link}): {axis.arithmetic}: {axis.bound} binds, {share:.1%} of the step is exposed")
    sums = sums or [f"One rank sends nothing: a layer takes {seconds(of.layer.total_s)} of compute a microbatch"]
    grow = "Bytes grow with batch, sequence, hidden and layers"
    return f"{grow}, and so does compute, by hidden once more. " + ". ".join(sums) + "."


def what_cp_cuts(facts: Facts) -> str:
    """The sequence."""
    layout = facts.with_cp
    work, _ = facts.microbatch(layout)
    seq, cp, model = facts.study.workload.seq_len, layout.cp, facts.study.model
    first, second = zigzag(seq, cp, 0)
    ring, gather = (sum(m.sent_bytes for m in facts.messages(replace(layout, cp_method=how), "cp")) for how in ("ring", "gather"))
    given = "" if facts.layout.cp > 1 else "The plan does not need it. "
    kv = work.share.kv_width // model.head_dim
    return (
        f"{given}The sequence: of {seq:,} tokens over cp {cp} rank 0 holds {first[1]:,} from {first[0]:,} on and {second[1]:,} from "
        f"{second[0]:,} on (zigzag, so causal work is even). Token-wise layers send nothing; attention sends keys and values of {kv} "
        f"KV heads x {model.head_dim}, and backward their gradients: by ring {size(ring)} a rank and step, by gather {size(gather)}. "
        f"{_capital(facts.finding('cp-or-tp'))}."
    )


def in_which_order(facts: Facts) -> str:
    """tp, sp, dp, pp, cp."""
    links, island = facts.study.plan.cluster.links, facts.study.pricer.topology.largest
    chosen = ", ".join(
        f"{a.name} {a.size} over the {a.link}: {size(sum(t.sent_bytes for t in a.traffic))} a rank and step" for a in facts.axes
    )
    layout = facts.with_tp
    sp_bytes = facts.microbatch(replace(layout, sp=True))[0].residual_bytes
    sp = f"; sp cuts only what lies between them, norms and residual stream, to {size(sp_bytes)} a microbatch" if layout.tp > 1 else ""
    return (
        f"TP first, inside an island of {island} ({links.island.gbytes_s:g} GB/s a device, across {links.fabric.gbytes_s:g}), for it "
        f"talks in every layer; then DP, then PP across nodes, CP for long context. Here {chosen or 'one device is enough'}. "
        f"CP cuts the sequence where TP cuts weights{sp}. {_capital(facts.finding('cp-or-tp'))}."
    )


def _named(facts: Facts, tp: int) -> str:
    return f"With tp {tp} " if facts.layout.tp > 1 else f"The plan has tp 1; with tp {tp} on the same devices "


def _capital(text: str) -> str:
    axis, _, rest = text.partition(" ")
    return f"{axis.upper()} {rest}" if axis in ("cp", "tp") else text[:1].upper() + text[1:]
