"""The cheapest way to serve a demand: every cut of a replica, and of each the fewest replicas that meet the limits.

    cuts tp x pp x cp ──does not fit, or too slow even for one request alone──▶ Refused
      │
      ▼ fewest devices first, by what a replica can sustain at most
    load played at rate / replicas ──▶ Option ──▶ fewest devices, then least time to the first token
      │
      └──needs more devices than the best, or than there are──▶ Refused

The same input gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rayplane.errors import PlacementError, Problem, SpecError
from rayplane.plan.catalog import slowest
from rayplane.plan.engine import RAYPLANE, Engine
from rayplane.plan.kv import Room, room
from rayplane.plan.load import Load, Played, percentile, play, saturating
from rayplane.plan.network import Network
from rayplane.plan.place import place
from rayplane.plan.serve import RATES, Rates, Replica, Terms
from rayplane.plan.serve_plan import Demand, Option, Refused, ServePlan
from rayplane.plan.served import Cut, Served
from rayplane.plan.topology import topology
from rayplane.spec.cluster import ClusterSpec

MAX_STAGES = 16
PLAYED = (200, 2000)
"""At least and at most so many requests are played."""
WARM = 0.3
"""Of them come before any is counted."""
SLACK = 1.25
"""A replica may sustain so much more than estimated, when cuts are put in order."""
KEPT = 8
"""So many cuts that meet the demand are played to the end."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cut that serves one request alone in time."""

    replica: Replica
    room: Room
    sustained: float
    """Requests a second at most, estimated."""


def plan_serving(served: Served, demand: Demand, cluster: ClusterSpec, engine: Engine = RAYPLANE, rates: Rates = RATES) -> ServePlan:
    """Raises SpecError for a demand that makes no sense, PlacementError when no layout of this cluster meets it."""
    _check(demand, cluster)
    device, islands = slowest(cluster), topology(cluster)
    entries: list[_Entry] = []
    refused: list[Refused] = []
    for cut in cuts(served, cluster.num_devices, islands.largest):
        replica = Replica(served, cut, Network(cluster.links, device), islands.largest, engine, rates)
        free = room(replica, cluster.memory_bytes)
        if reason := _alone(replica, free, demand):
            refused.append(Refused(cut, reason))
        else:
            entries.append(_Entry(replica, free, sustained(replica, free, demand)))
    options = _compete(entries, demand, cluster, refused)
    if not options:
        raise PlacementError(_nothing_meets(demand, entries, refused, cluster))
    best, *others = options
    return ServePlan(demand, best, place(best.layout, cluster), tuple(others), tuple(refused))


def cuts(served: Served, devices: int, island: int) -> Iterator[Cut]:
    """tp up to the island and the heads, pp and cp in powers of two; tp and cp together only inside the island, or cp across."""
    powers = [2**i for i in range(MAX_STAGES.bit_length())]
    for tp in range(1, min(island, served.model.heads, devices) + 1):
        for pp in (p for p in powers if p <= min(served.model.layers, MAX_STAGES)):
            for cp in powers:
                if tp * pp * cp <= devices:
                    yield Cut(tp=tp, pp=pp, cp=cp)


def sustained(replica: Replica, free: Room, demand: Demand) -> float:
    """Requests a second of a replica whose batch is always full: some of its steps compute a prompt, or a chunk of one, besides."""
    batch = saturating(replica, free, demand.prompt, demand.output)
    engine, cut = replica.engine, replica.cut
    prompts = batch / demand.output  # for each step
    tokens = min(demand.prompt * max(1.0, prompts), engine.chunk * cut.pp * cut.cp)
    mixed = min(1.0, prompts * demand.prompt / tokens)  # share of the steps
    decode_s = replica.counts(batch, 0, 0).total
    prompt_s = replica.counts(batch, math.ceil(tokens), math.ceil(prompts)).total - decode_s
    attention_s = prompts * replica.prompt_s(0, demand.prompt) + replica.cache_s(batch, batch * (demand.prompt + demand.output / 2))
    return prompts / max(decode_s + mixed * prompt_s + attention_s, engine.token_s * batch)


def _check(demand: Demand, cluster: ClusterSpec) -> None:
    if not cluster.num_devices:
        raise SpecError("the cluster has no devices")
    problems = [
        Problem(f"{getattr(demand, name):g} must be above 0", f"serve.{name}")
        for name in ("prompt", "output", "rate", "ttft_s", "tpot_s")
        if not getattr(demand, name) > 0
    ]
    if not math.isfinite(demand.rate):
        problems.append(Problem(f"{demand.rate:g} requests/s are no load; give a number", "serve.rate"))
    if not 0 < demand.share <= 1:
        problems.append(Problem(f"{demand.share:g} is no share of the requests; use up to 1", "serve.share"))
    if problems:
        raise SpecError(problems)


def _alone(replica: Replica, free: Room, demand: Demand) -> str:
    """Why a cut cannot serve even one request in time; empty where it can."""
    if shortage := free.shortage:
        return shortage
    if free.tokens < (longest := demand.prompt + demand.output):
        return f"the cache holds {free.tokens} tokens, one sequence has {longest}"
    lone = play(replica, free, Load(demand.prompt, demand.output, concurrency=1, requests=1))
    if lone.ttft_s[0] > demand.ttft_s:
        terms = alone_terms(replica, demand)
        return f"first token after {_ms(lone.ttft_s[0])} with nobody else there, above {_ms(demand.ttft_s)}: {_largest(terms)}"
    if lone.tpot_s and lone.tpot_s[0] > demand.tpot_s:
        terms = replica.counts(1, 0, 0)
        return f"a token takes {_ms(lone.tpot_s[0])} with nobody else there, above {_ms(demand.tpot_s)}: {_largest(terms)}"
    return ""


def alone_terms(replica: Replica, demand: Demand) -> Terms:
    """Of the step that computes one prompt."""
    return replace(replica.counts(0, demand.prompt, 1), attention=replica.prompt_s(0, demand.prompt))


def _compete(entries: list[_Entry], demand: Demand, cluster: ClusterSpec, refused: list[Refused]) -> list[Option]:
    """Options that meet the demand, in order of preference; all others join the refused."""
    options: list[Option] = []
    for entry in sorted(entries, key=lambda e: (_least(e, demand) * e.replica.cut.size, e.replica.cut.size, str(e.replica.cut))):
        cut, least = entry.replica.cut, _least(entry, demand)
        room_for = cluster.num_devices // cut.size
        cheapest = options[0].devices if options else cluster.num_devices
        if least > room_for:
            refused.append(Refused(cut, f"needs at least {least} replicas, the cluster holds {room_for}"))
        elif options and least * cut.size > cheapest:
            refused.append(Refused(cut, f"costs at least {least * cut.size} devices, {options[0]} costs {cheapest}"))
        elif len(options) >= KEPT:
            refused.append(Refused(cut, f"not tried: {KEPT} others meet the limits"))
        elif option := _fewest(entry, demand, least, room_for):
            options.append(option)
            options.sort(key=lambda o: (o.devices, o.ttft_s, o.tpot_s, str(o.cut)))
        else:
            refused.append(Refused(cut, f"misses the limits at {demand.rate:g} requests/s even with {room_for} replicas"))
    return options


def _least(entry: _Entry, demand: Demand) -> int:
    return max(1, math.ceil(demand.rate / (SLACK * entry.sustained)))


def _fewest(entry: _Entry, demand: Demand, least: int, most: int) -> Option | None:
    """The fewest replicas with which the limits hold; None if they do not with all there is room for."""
    low, high, found = least, least, None
    while (found := _option(entry, demand, high)) is None:
        if high == most:
            return None
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if better := _option(entry, demand, middle):
            found, high = better, middle
        else:
            low = middle + 1
    return found


def _option(entry: _Entry, demand: Demand, replicas: int) -> Option | None:
    """What so many replicas give, if the demanded share of the requests meets both limits."""
    replica, rate = entry.replica, demand.rate / replicas
    played = play(replica, entry.room, Load(demand.prompt, demand.output, rate=rate, requests=_count(replica, demand, rate), warm=WARM))
    ttft_s, tpot_s = percentile(played.ttft_s, demand.share), percentile(played.tpot_s, demand.share)
    if ttft_s > demand.ttft_s or tpot_s > demand.tpot_s:
        return None
    running = max(1, round(_running(played, demand, rate)))
    decode = replace(replica.counts(running, 0, 0), attention=replica.cache_s(running, running * (demand.prompt + demand.output / 2)))
    tokens_s = demand.rate * demand.output
    return Option(replica.cut, replicas, ttft_s, tpot_s, tokens_s, entry.room.tokens, alone_terms(replica, demand), decode)


def _running(played: Played, demand: Demand, rate: float) -> float:
    """Sequences that decode at a time, by Little's law."""
    return rate * demand.output * (sum(played.tpot_s) / len(played.tpot_s) if played.tpot_s else 0.0)


def _count(replica: Replica, demand: Demand, rate: float) -> int:
    """Enough requests for four times what is on its way at a time."""
    alone_s = replica.counts(0, demand.prompt, 1).total + demand.output * replica.counts(1, 0, 0).total
    return max(PLAYED[0], min(PLAYED[1], math.ceil(4 * rate * alone_s)))


def _nothing_meets(demand: Demand, entries: list[_Entry], refused: list[Refused], cluster: ClusterSpec) -> str:
    """The message for a user whose demand is too high: what is possible instead."""
    if not entries:
        return f"no layout serves {demand} here. " + "; ".join(f"{r.cut}: {r.reason}" for r in _nearest(refused))
    most = max(entries, key=lambda e: (cluster.num_devices // e.replica.cut.size * e.sustained, -e.replica.cut.size))
    replicas = cluster.num_devices // most.replica.cut.size
    rate = replicas * most.sustained
    return (
        f"{cluster.num_devices} devices do not serve {demand}. Most is to be had of {replicas} x {most.replica.cut}: "
        f"about {rate:.3g} requests/s with a full batch. Use more devices, a lower rate, or looser limits"
    )


def _nearest(refused: list[Refused]) -> list[Refused]:
    """Largest cuts first: what they lack is least."""
    return sorted(refused, key=lambda r: (-r.cut.tp, r.cut.size))[:2]


def _largest(terms: Terms) -> str:
    named = sorted(terms.named().items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {_ms(seconds)}" for name, seconds in named[:3] if seconds > 0)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
