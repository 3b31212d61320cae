"""What one cut gives: alone, with a full batch, and played at a rate.

alone         one request with nobody else there: what it lacks or takes too long for rules the cut out
full batch    requests a second at most: some of a replica's steps compute a prompt, or a chunk of one, besides
at a rate     requests at random, the same ones for every cut; times of half of them, of the demanded share, of 99 of 100
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rayplane.plan.machine.cores import Machines
from rayplane.plan.serving.kv import Room
from rayplane.plan.serving.load import Load, Played, mean, percentile, play, saturating
from rayplane.plan.serving.serve import Replica, Terms
from rayplane.plan.serving.serve_plan import Demand, Option, Saturated, Times, named
from rayplane.plan.step.partition import cut as cut_stages

PLAYED = (200, 2000)
"""At least and at most so many requests are played."""
FEWEST = 40
WARM = 0.3
"""Of them come before any is counted."""
SLACK = 1.25
"""A replica may sustain so much more than estimated, when cuts are put in order."""
HALVINGS = 7
"""Until the highest rate is known within 1%."""
ROUNDS = 4
"""Of a full batch, of which only means count."""
STEPS = 20_000
"""Prompts are played in so many chunks at most, or in those of the fewest requests."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cut of a replica, with its room and the machines it is for."""

    replica: Replica
    room: Room
    on: Machines

    @property
    def devices(self) -> int:
        """What a replica costs."""
        return self.replica.cut.size * self.on.cores

    @property
    def room_for(self) -> int:
        """Replicas that the machines hold with ranks that share a layer, and a sequence if they can, in one island."""
        cut, islands = self.replica.cut, self.on.islands
        cell = cut.tp * cut.cp
        if cell <= islands.largest:
            return islands.groups(cell) // cut.pp
        return islands.groups(cut.tp) // (cut.cp * cut.pp) or self.on.num_devices // cut.size

    def most(self, demand: Demand) -> int:
        """Replicas that there may be."""
        allowed = self.room_for if demand.most_devices is None else demand.most_devices // self.devices
        return min(self.room_for, demand.most or self.room_for, allowed)

    def __str__(self) -> str:
        return named(self.replica.cut, self.on.cores)


def lack(entry: Entry, demand: Demand) -> str:
    """What of memory is missing for one request; empty where there is room."""
    if shortage := entry.room.shortage:
        return shortage
    if entry.room.tokens < (longest := max(demand.prompt + demand.output, demand.longest)):
        return f"the cache holds {entry.room.tokens} tokens, one sequence has {longest}"
    return ""


def too_slow(entry: Entry, demand: Demand) -> str:
    """Which limit one request misses with nobody else there; empty where it holds both."""
    if (ttft_s := first_s(entry, demand)) > demand.ttft_s:
        terms = alone_terms(entry.replica, demand)
        return f"first token after {_ms(ttft_s)} with nobody else there, above {_ms(demand.ttft_s)}: {_largest(terms)}"
    if (tpot_s := token_s(entry, demand)) > demand.tpot_s:
        terms = entry.replica.counts(1, 0, 0)
        return f"a token takes {_ms(tpot_s)} with nobody else there, above {_ms(demand.tpot_s)}: {_largest(terms)}"
    return ""


def first_s(entry: Entry, demand: Demand) -> float:
    """To the first token of one request with nobody else there."""
    return _alone(entry, demand).ttft_s[0]


def token_s(entry: Entry, demand: Demand) -> float:
    """Between its tokens; 0 where it has only one."""
    return mean(_alone(entry, demand).tpot_s)


def _alone(entry: Entry, demand: Demand) -> Played:
    return play(entry.replica, entry.room, replace(load(demand), concurrency=1, requests=1))


def load(demand: Demand) -> Load:
    """Requests as demanded, however they come."""
    return Load(demand.prompt, demand.output, cached=demand.cached)


def alone_terms(replica: Replica, demand: Demand) -> Terms:
    """Of the step that computes one prompt."""
    computed = demand.computed
    return replace(replica.counts(0, computed, 1), attention=replica.prompt_s(demand.prompt - computed, computed))


def sustained(entry: Entry, demand: Demand) -> float:
    """Requests a second of a replica whose batch is always full."""
    replica = entry.replica
    batch = saturating(replica, entry.room, demand.prompt, demand.output)
    engine, cut, computed = replica.engine, replica.cut, demand.computed
    prompts = batch / demand.output  # for each step
    tokens = min(computed * max(1.0, prompts), engine.chunk * cut.pp * cut.cp)
    mixed = min(1.0, prompts * computed / tokens)  # share of the steps
    decode_s = replica.counts(batch, 0, 0).total
    prompt_s = replica.counts(batch, math.ceil(tokens), math.ceil(prompts)).total - decode_s
    cache_s = replica.cache_s(batch, batch * (demand.prompt + demand.output / 2))
    attention_s = prompts * replica.prompt_s(demand.prompt - computed, computed) + cache_s
    return prompts / max(decode_s + mixed * prompt_s + attention_s, engine.token_s * batch)


def priced(entry: Entry, demand: Demand, replicas: int, rate: float) -> Option:
    """What so many replicas give at a rate."""
    replica, each = entry.replica, rate / replicas
    played = _played(entry, demand, each)
    ttft, tpot = _times(played.ttft_s, demand.share), _times(played.tpot_s, demand.share)
    running = max(1, round(each * demand.output * mean(played.tpot_s)))  # by Little's law
    decode = replace(replica.counts(running, 0, 0), attention=replica.cache_s(running, running * (demand.prompt + demand.output / 2)))
    return Option(
        cut=replica.cut,
        replicas=replicas,
        cores=entry.on.cores,
        rate=rate,
        ttft=ttft,
        tpot=tpot,
        tokens_s=rate * demand.output,
        most_tokens_s=replicas * sustained(entry, demand) * demand.output,
        cache_tokens=entry.room.tokens,
        sequences=saturating(replica, entry.room, demand.prompt, demand.output),
        weights_bytes=entry.room.weights,
        prompt_terms=alone_terms(replica, demand),
        decode_terms=decode,
        boundaries=_boundaries(replica, running),
        misses=(*_overload(entry, demand, each), *_misses(demand, ttft, tpot)),
    )


def highest_rate(entry: Entry, demand: Demand, replicas: int) -> float:
    """Requests a second at which so many replicas still hold the limits; 0 where they never do."""
    low, high = 0.0, SLACK * sustained(entry, demand)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        played = _played(entry, demand, middle)
        late = _misses(demand, _times(played.ttft_s, demand.share), _times(played.tpot_s, demand.share))
        low, high = (low, middle) if late else (middle, high)
    return low * replicas


def saturated(entry: Entry, demand: Demand, replicas: int) -> Saturated:
    """What requests meet in a full batch."""
    at_once = saturating(entry.replica, entry.room, demand.prompt, demand.output)
    chunks = math.ceil(demand.computed / entry.replica.engine.chunk)
    requests = min(ROUNDS * at_once, max(2 * at_once, PLAYED[1]), max(2 * FEWEST, STEPS // chunks))
    full = replace(load(demand), concurrency=at_once, requests=requests, spread=0.05)
    played = play(entry.replica, entry.room, full)
    return Saturated(at_once, mean(played.ttft_s), mean(played.tpot_s), replicas * played.tokens_s)


def _played(entry: Entry, demand: Demand, rate: float) -> Played:
    count = _count(entry.replica, demand, rate)
    return play(entry.replica, entry.room, replace(load(demand), rate=rate, requests=count, warm=WARM))


def _count(replica: Replica, demand: Demand, rate: float) -> int:
    """Enough requests for four times what is on its way at a time; fewer where a prompt takes many steps."""
    chunks = math.ceil(demand.computed / replica.engine.chunk)
    alone_s = replica.counts(0, demand.computed, 1).total + demand.output * replica.counts(1, 0, 0).total
    enough = max(PLAYED[0], min(PLAYED[1], math.ceil(4 * rate * alone_s)))
    return min(enough, max(FEWEST, STEPS // chunks))


def _times(seconds: tuple[float, ...], share: float) -> Times:
    return Times(percentile(seconds, 0.5), percentile(seconds, share), percentile(seconds, 0.99))


def _misses(demand: Demand, ttft: Times, tpot: Times) -> tuple[str, ...]:
    pairs = (("ttft", ttft.share_s, demand.ttft_s), ("tpot", tpot.share_s, demand.tpot_s))
    return tuple(f"{name} {_ms(seconds)} is above {_ms(limit)}" for name, seconds, limit in pairs if seconds > limit)


def _overload(entry: Entry, demand: Demand, each: float) -> tuple[str, ...]:
    """Whether more comes than a replica can do, so that the queue grows without end."""
    most = SLACK * sustained(entry, demand)
    told = f"{each:,.0f}" if each >= 100 else f"{each:.3g}"
    return (f"{told} requests/s for each replica are above the {most:.3g} that it sustains",) if each > most else ()


def _boundaries(replica: Replica, running: int) -> tuple[int, ...]:
    """Layers per stage, so that the last one, which has the head besides, takes no longer than the others."""
    model, pp = replica.served.model, replica.cut.pp
    if pp == 1:
        return (model.layers,)
    head_s = replica.head_s(running / pp)
    layer_s = (replica.counts(running, 0, 0).total - pp * head_s) / model.layers
    return cut_stages([layer_s] * model.layers, [0.0] * (pp - 1) + [head_s], range(pp))


def _largest(terms: Terms) -> str:
    named = sorted(terms.named().items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {_ms(seconds)}" for name, seconds in named[:3] if seconds > 0)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
