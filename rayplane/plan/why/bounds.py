"""What binds each mesh axis of the winner: its bytes over its link against the compute of the same rank, and how much of it shows.

comm_s      all its collectives, one after another, with nothing beside them
exposed_s   what the step's term of that axis holds of them: by how much they lengthen the step, comm_s at most. What the term also
            has of waiting for the slower rank is no communication and is taken off
bound       communication, where comm_s is more than the compute of the same rank
"""

from __future__ import annotations

from collections.abc import Iterator

from rayplane.plan.choice.report import seconds, size
from rayplane.plan.machine.network import Group, Network
from rayplane.plan.step.profile import figures
from rayplane.plan.step.terms import terms_of
from rayplane.plan.why.explanation import Axis
from rayplane.plan.why.study import Study, waits_s
from rayplane.plan.why.traffic import Message, Passage, over_cp, over_pp, over_tp
from rayplane.plan.why.weight_traffic import over_dp

LARGE = 1e9
"""Bytes at which latencies no longer count."""
TERM = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "p2p"}
"""Of the estimate, by axis."""


def passage(of: Study) -> Passage:
    """The microbatches of what was drafted, on its slowest stage."""
    outline = of.draft.outline
    work, _ = of.pricer.microbatch(outline.layout, of.slowest)
    return Passage(work, outline.layout, of.pricer.topology, outline.rounds, of.slowest)


def axes(of: Study) -> tuple[Axis, ...]:
    """Every axis of more than one rank, innermost first; dp with cp, over both of which gradients are summed."""
    here, layout = passage(of), of.layout
    talk = {
        "tp": (layout.tp, over_tp),
        "cp": (layout.cp, over_cp),
        "dp": (layout.dp * layout.cp, over_dp),
        "pp": (layout.pp, over_pp),
    }
    return tuple(_axis(of, name, ranks, list(messages(here))) for name, (ranks, messages) in talk.items() if ranks > 1)


def gbytes_s(network: Network, message: Message) -> float:
    """What a rank sends a second in a large call of the kind."""
    if message.op == "send":
        return LARGE / network.p2p_s(LARGE, message.group.inside) / 1e9
    large = Message(message.what, message.op, message.group, 1, LARGE, "")
    return large.call_bytes / large.seconds(network) / 1e9


def link_of(network: Network, group: Group) -> str:
    """The link that binds a group: a group of many neighbours may have more network cards than its island's links can feed."""
    if group.inside or network.binding(group).gbytes_s >= network.links.island.gbytes_s:
        return "island"
    return "fabric"


def _axis(of: Study, name: str, ranks: int, messages: list[Message]) -> Axis:
    network, time_s = of.pricer.network, of.plan.estimate.time_s
    factor = getattr(terms_of(of.plan.cluster.profile), TERM[name])
    comm_s = factor * sum(m.seconds(network) for m in messages)
    heaviest = max(messages, key=lambda m: m.seconds(network))
    link, rate = link_of(network, heaviest.group), gbytes_s(network, heaviest) / factor
    waited_s = dict(zip(("tp", "cp"), waits_s(of), strict=True)).get(name, 0.0)
    exposed_s = min(comm_s, max(0.0, time_s[TERM[name]] - waited_s))
    compute_s = time_s["compute"]
    sources = " and ".join(_sources(of, link, heaviest))
    cards = heaviest.group.per_island
    where = f"{link} by the {cards} network cards of an island" if link == "fabric" and cards > 1 and heaviest.op != "send" else link
    text = (
        f"{size(sum(m.sent_bytes for m in messages))} a step; large calls send {rate:.3g} GB/s over the {where} ({sources}): "
        f"{seconds(comm_s)} against {seconds(compute_s)} of compute at {_rate(of)}; "
        f"{seconds(comm_s - exposed_s)} of it hidden, {seconds(exposed_s)} exposed"
    )
    if waited_s > 0.0:
        text += f"; beside it {seconds(waited_s)} of waiting for the slower rank"
    return Axis(
        name=name,
        size=ranks,
        link=link,
        gbytes_s=rate,
        traffic=tuple(m.traffic() for m in messages),
        comm_s=comm_s,
        exposed_s=exposed_s,
        compute_s=compute_s,
        bound="communication" if comm_s > compute_s else "compute",
        arithmetic=text,
    )


def _rate(of: Study) -> str:
    """Useful FLOP/s of a device while it computes, on average over the stages."""
    work, computed_s = of.workload, of.plan.estimate.time_s["compute"]
    flops = of.model.flops_per_token(work.seq_len) * work.seq_len * work.global_batch
    gflops = flops / of.layout.size / computed_s / 1e9
    return f"{gflops / 1e3:.3g} TFLOP/s" if gflops >= 1e3 else f"{gflops:.3g} GFLOP/s"


def _sources(of: Study, link: str, message: Message) -> Iterator[str]:
    """Where the figures of the link come from."""
    where = "inside" if link == "island" else "across"
    names = (f"link {where}",) if message.op == "send" else (f"link {where}", f"rings {where}")
    known = {f.name: f.source for f in figures(of.plan.cluster, of.workload.precision)}
    return (f"{name}: {known[name]}" for name in names)
