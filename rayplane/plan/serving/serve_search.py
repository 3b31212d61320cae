"""The best way to serve a demand: every cut of a replica, and of each as many replicas as the rule takes.

    cuts tp x pp x cp, cores ──does not fit─────────────────────────────▶ Refused
      │                      ──too slow even for one request alone──────▶ Refused, unless all are: then the nearest
      ▼
    rule (`serve_rules`) ──▶ Option, options that lost, reasons of the others

A layout that the job gives is priced alone, and what it misses is said. The same input gives the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rayplane.errors import PlacementError, Problem, SpecError
from rayplane.plan.choice.place import place
from rayplane.plan.machine.cores import Machines, machines
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.engine import RAYPLANE, Engine
from rayplane.plan.serving.kv import room
from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.serve_plan import Demand, Option, Refused, ServePlan
from rayplane.plan.serving.serve_price import Entry, highest_rate, lack, priced, saturated, sustained, too_slow
from rayplane.plan.serving.serve_rules import (
    BALANCED,
    CHEAPEST,
    FASTEST,
    GIVEN,
    HALF,
    NEAREST,
    balanced,
    cheapest,
    fastest,
    fewest,
    nearest,
)
from rayplane.plan.serving.served import Cut, Served
from rayplane.spec.cluster import ClusterSpec

MAX_STAGES = 16


@dataclass(frozen=True, slots=True)
class Pinned:
    """A layout that the job gives; `replicas` None: as many as it takes."""

    cut: Cut
    replicas: int | None = None


def plan_serving(
    served: Served,
    demand: Demand,
    cluster: ClusterSpec,
    engine: Engine = RAYPLANE,
    pinned: Pinned | None = None,
    or_nearest: bool = False,
) -> ServePlan:
    """Raises SpecError for a demand that makes no sense, PlacementError when no layout of this cluster meets it, or none even fits
    where `or_nearest` asks for the one that comes nearest to the limits.
    """
    check(demand, cluster)
    ways = machines(cluster, served.formats.tables)
    if pinned:
        return _given(served, demand, ways, engine, pinned)
    every = [entry_of(served, cut, on, engine) for on in ways for cut in cuts(served, on.num_devices, on.islands.largest)]
    lacks = [(entry, lack(entry, demand) or _too_few(entry, demand)) for entry in every]
    lacking = [Refused(entry.replica.cut, reason, entry.on.cores) for entry, reason in lacks if reason]
    fitting = [entry for entry, reason in lacks if not reason]
    options, rule, refused = _ranked(fitting, demand)
    shortfall = ""
    if not options:
        shortfall = _nothing_meets(demand, [e for e in fitting if not too_slow(e, demand)], [*lacking, *refused], cluster)
        if not (or_nearest and fitting):
            raise PlacementError(shortfall)
        refused = []
        options, rule = nearest(fitting, demand, refused), NEAREST
    chosen = next(e for e in fitting if e.replica.cut == options[0].cut and e.on.cores == options[0].cores)
    answer = _answer(chosen, demand, options[0], rule)
    return replace(answer, shortfall=shortfall, runners_up=tuple(options[1:]), refused=(*lacking, *refused))


def _ranked(fitting: list[Entry], demand: Demand) -> tuple[list[Option], str, list[Refused]]:
    """Options by the rule that the demand calls for, and why the others are none."""
    slow = [(entry, too_slow(entry, demand)) for entry in fitting]
    entries = [entry for entry, reason in slow if not reason]
    refused = [Refused(entry.replica.cut, reason, entry.on.cores) for entry, reason in slow if reason]
    if demand.rate is not None:
        return cheapest(entries, demand, demand.rate, refused), CHEAPEST, refused
    if demand.limited:
        return fastest(entries, demand, refused), FASTEST, refused
    return balanced(entries, demand, refused), BALANCED, refused


def cuts(served: Served, devices: int, island: int) -> Iterator[Cut]:
    """tp up to the island and the heads, pp and cp in powers of two; tp and cp together only inside the island, or cp across."""
    powers = [2**i for i in range(MAX_STAGES.bit_length())]
    for tp in range(1, min(island, served.model.heads, devices) + 1):
        for pp in (p for p in powers if p <= min(served.model.layers, MAX_STAGES)):
            for cp in powers:
                if tp * pp * cp <= devices:
                    yield Cut(tp=tp, pp=pp, cp=cp)


def check(demand: Demand, cluster: ClusterSpec) -> None:
    """Raises SpecError where nothing can be planned."""
    if not cluster.num_devices:
        raise SpecError("the cluster has no devices")
    problems = [
        Problem(f"{value:g} must be above 0", f"serve.{name}")
        for name in ("prompt", "output", "rate", "ttft_s", "tpot_s")
        if (value := getattr(demand, name)) is not None and not value > 0
    ]
    if demand.rate is not None and not math.isfinite(demand.rate):
        problems.append(Problem(f"{demand.rate:g} requests/s are no load; give a number", "serve.rate"))
    if not 0 < demand.share <= 1:
        problems.append(Problem(f"{demand.share:g} is no share of the requests; use up to 1", "serve.share"))
    if problems:
        raise SpecError(problems)


def entry_of(served: Served, cut: Cut, on: Machines, engine: Engine) -> Entry:
    """A cut of the model as it runs on these machines."""
    replica = Replica(served, cut, Network(on.cluster.links, on.device), on.islands.largest, engine)
    return Entry(replica, room(replica, on.memory_bytes), on)


def _too_few(entry: Entry, demand: Demand) -> str:
    if entry.room_for < demand.least:
        return f"serve.replicas.min: {demand.least} replicas are wanted, the cluster holds {entry.room_for}"
    if demand.most_devices is not None and (size := demand.least * entry.devices) > demand.most_devices:
        return f"limits.max_devices: {demand.least} x {entry} takes {size}, allowed are {demand.most_devices}"
    return ""


def _answer(entry: Entry, demand: Demand, best: Option, rule: str) -> ServePlan:
    return ServePlan(demand, best, place(best.layout, entry.on.cluster), saturated(entry, demand, best.replicas), rule)


def _given(served: Served, demand: Demand, ways: tuple[Machines, ...], engine: Engine, pinned: Pinned) -> ServePlan:
    """The layout that the job gives, with the most cores that leave it room."""
    size = pinned.cut.size * (pinned.replicas or demand.least)
    most = math.inf if demand.most_devices is None else demand.most_devices
    on = next((m for m in ways if m.num_devices >= size and size * m.cores <= most), None)
    if on is None:
        have = int(min(ways[-1].num_devices, most))
        whose = "the cluster has" if have == ways[-1].num_devices else "limits.max_devices is"
        wanted = f"{pinned.replicas or demand.least} x {pinned.cut} needs {size} devices, {whose} {have}"
        raise PlacementError(f"layout: {wanted}; use {_at_most(have, pinned.cut)}, or more devices")
    entry = entry_of(served, pinned.cut, on, engine)
    if reason := lack(entry, demand):
        raise PlacementError(f"{entry} does not fit: {reason}{_wider(served, demand, on, engine)}")
    low, high = (pinned.replicas,) * 2 if pinned.replicas else (demand.least, entry.most(demand))
    if demand.rate is not None:
        best = fewest(entry, demand, demand.rate, low, high) or priced(entry, demand, high, demand.rate)
    else:
        rate = highest_rate(entry, demand, high) if demand.limited else 0.0
        best = priced(entry, demand, high, rate or HALF * high * sustained(entry, demand))
    return _answer(entry, demand, best, GIVEN)


def _at_most(have: int, cut: Cut) -> str:
    return f"{have // cut.size} x {cut}" if have >= cut.size else f"a cut of at most {have} devices"


def _wider(served: Served, demand: Demand, on: Machines, engine: Engine) -> str:
    """The least cut that fits, as a remedy."""
    tried = sorted(cuts(served, on.num_devices, on.islands.largest), key=lambda c: (c.size, -c.tp))
    fits = next((cut for cut in tried if not lack(entry_of(served, cut, on, engine), demand)), None)
    return f"; {fits} fits" if fits else "; no cut of this cluster fits"


def _nothing_meets(demand: Demand, entries: list[Entry], refused: list[Refused], cluster: ClusterSpec) -> str:
    """The message for a user whose demand is too high: what is possible instead."""
    if not entries:
        nearest = sorted(refused, key=lambda r: (-r.cut.tp * r.cores, r.cut.size))[:2]  # what they lack is least
        return f"no layout serves {demand} here. " + "; ".join(f"{r}: {r.reason}" for r in nearest)
    most = max(entries, key=lambda e: (e.most(demand) * sustained(e, demand), -e.devices))
    replicas = most.most(demand)
    return (
        f"{cluster.num_devices} devices do not serve {demand}. Most is to be had of {replicas} x {most}: "
        f"about {replicas * sustained(most, demand):.3g} requests/s with a full batch. Use more devices, a lower rate, or looser limits"
    )
