"""By what rule one way to serve is better than another; each ranks the cuts it has played, and keeps a reason for every other.

cheapest   a rate is demanded   fewest replicas that hold the limits at that rate; fewest devices win, then the sooner first token
fastest    limits alone         all replicas that there may be; the highest rate at which the limits hold wins
balanced   neither              all replicas; most tokens/s with a full batch times tokens/s of a request alone wins, so that
                                neither is bought at the cost of more than it is worth in the other
nearest    nothing holds them   all replicas; the least excess over the limits wins
"""

from __future__ import annotations

import math

from rayplane.plan.serving.serve_plan import Demand, Option, Refused
from rayplane.plan.serving.serve_price import SLACK, Entry, first_s, highest_rate, priced, sustained, token_s

KEPT = 8
"""So many cuts are played to the end."""
HALF = 0.5
"""Of what a full batch sustains: the rate at which a plan is shown where none is demanded."""
CHEAPEST = "fewest devices that hold the limits at the demanded rate, then least time to the first token"
FASTEST = "highest rate at which the limits hold, with all replicas that there may be"
BALANCED = "most tokens/s with a full batch times tokens/s of a request alone; shown at half of what it sustains"
NEAREST = "least excess over the limits, which no layout holds"
GIVEN = "the job's own layout"


def cheapest(entries: list[Entry], demand: Demand, rate: float, refused: list[Refused]) -> list[Option]:
    """Options that meet the demand, in order of preference; all others join the refused."""
    options: list[Option] = []
    least_of = {id(entry): max(demand.least, math.ceil(rate / (SLACK * sustained(entry, demand)))) for entry in entries}
    for entry in sorted(entries, key=lambda e: (least_of[id(e)] * e.devices, e.devices, str(e))):
        least, most, cut, cores = least_of[id(entry)], entry.most(demand), entry.replica.cut, entry.on.cores
        if least > most:
            refused.append(Refused(cut, f"needs at least {least} replicas, {_held(entry, demand)}", cores))
        elif options and least * entry.devices > options[0].devices:
            cost = f"costs at least {least * entry.devices} devices, {options[0]} costs {options[0].devices}"
            refused.append(Refused(cut, cost, cores))
        elif len(options) >= KEPT:
            refused.append(Refused(cut, f"not tried: {KEPT} others meet the limits", cores))
        elif option := fewest(entry, demand, rate, least, most):
            options.append(option)
            options.sort(key=lambda o: (o.devices, o.ttft_s, o.tpot_s, str(o)))
        else:
            refused.append(Refused(cut, f"misses the limits at {rate:g} requests/s even with {most} replicas", cores))
    return options


def _held(entry: Entry, demand: Demand) -> str:
    most = entry.most(demand)
    if most == entry.room_for:
        return f"the cluster holds {most}"
    return f"serve.replicas.max is {most}" if most == demand.most else f"limits.max_devices is {demand.most_devices}"


def fewest(entry: Entry, demand: Demand, rate: float, least: int, most: int) -> Option | None:
    """The fewest replicas with which the limits hold; None if they do not with all there may be."""
    low, high = least, least
    while (found := priced(entry, demand, high, rate)).misses:
        if high == most:
            return None
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        if (option := priced(entry, demand, middle, rate)).misses:
            low = middle + 1
        else:
            found, high = option, middle
    return found


def fastest(entries: list[Entry], demand: Demand, refused: list[Refused]) -> list[Option]:
    """By the rate that the limits allow, those first that may reach the most."""

    def bound(entry: Entry) -> float:
        return SLACK * sustained(entry, demand) * entry.most(demand)

    options: list[Option] = []
    best = 0.0
    for entry in sorted(entries, key=lambda e: (-bound(e), e.devices, str(e))):
        cut, cores, replicas = entry.replica.cut, entry.on.cores, entry.most(demand)
        if bound(entry) <= best:
            refused.append(Refused(cut, f"at most {bound(entry):.3g} requests/s, {options[0]} serves {best:.3g}", cores))
        elif len(options) >= KEPT:
            refused.append(Refused(cut, f"not tried: {KEPT} others hold the limits", cores))
        elif rate := highest_rate(entry, demand, replicas):
            options.append(priced(entry, demand, replicas, rate))
            options.sort(key=lambda o: (-o.rate, o.ttft_s, o.tpot_s, str(o)))
            best = options[0].rate
        else:
            refused.append(Refused(cut, "misses the limits at any rate", cores))
    return options


def balanced(entries: list[Entry], demand: Demand, refused: list[Refused]) -> list[Option]:
    """By tokens/s of all requests times tokens/s of one."""

    def full(entry: Entry) -> float:
        return sustained(entry, demand) * entry.most(demand)

    def worth(entry: Entry) -> float:
        return full(entry) / (token_s(entry, demand) or first_s(entry, demand))

    ranked = sorted(entries, key=lambda e: (-worth(e), e.devices, str(e)))
    for entry in ranked[KEPT:]:
        behind = f"{worth(entry) / worth(ranked[0]):.0%} of what {ranked[0]} has of tokens/s with a full batch times tokens/s alone"
        refused.append(Refused(entry.replica.cut, behind, entry.on.cores))
    return [priced(entry, demand, entry.most(demand), HALF * full(entry)) for entry in ranked[:KEPT]]


def nearest(entries: list[Entry], demand: Demand, refused: list[Refused]) -> list[Option]:
    """By how many times as much as allowed the worst of both times and of the rate is; those that fit, however slow they are."""

    def crowded(entry: Entry) -> float:
        return demand.rate / (SLACK * sustained(entry, demand) * entry.most(demand)) if demand.rate else 0.0

    def strain(entry: Entry) -> float:
        return max(crowded(entry), first_s(entry, demand) / demand.ttft_s, token_s(entry, demand) / demand.tpot_s)

    ranked = sorted(entries, key=lambda e: (strain(e), -sustained(e, demand) * e.most(demand), e.devices, str(e)))
    for entry in ranked[KEPT:]:
        refused.append(Refused(entry.replica.cut, f"{strain(entry):.3g} times what the limits and the rate allow", entry.on.cores))
    options: list[tuple[float, Option]] = []
    for entry in ranked[:KEPT]:
        rate = demand.rate or HALF * sustained(entry, demand) * entry.most(demand)
        option = priced(entry, demand, entry.most(demand), rate)
        options.append((max(crowded(entry), option.ttft_s / demand.ttft_s, option.tpot_s / demand.tpot_s), option))
    return [option for _, option in sorted(options, key=lambda o: (o[0], -o[1].most_tokens_s, o[1].devices, str(o[1])))]
