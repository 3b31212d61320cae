"""Which of the bundles that a job has will do for another launch, decided without acting.

bundles      0: replica 0 on a     1: replica 1 on b     2: replica 2 on c
launch       replica 0 on b, replica 1 on c      ──▶ bundles 1, 2: a is lost, and its neighbours move up
"""

from __future__ import annotations

from collections.abc import Sequence

from rayplane.spec.plan import Slot


def retained(wanted: Sequence[Slot], planned: Sequence[Slot], bound: Sequence[Slot]) -> list[int] | None:
    """The bundle of each wanted slot; None when some slot has none. `planned` and `bound`: for what, and where, bundles were reserved.

    A slot gets the bundle that was reserved for it; else one on its own node for as many ranks.
    """
    by_ranks = {slot.ranks: i for i, slot in enumerate(bound)}
    known = {*planned, *bound}
    bundles = [by_ranks.get(slot.ranks) if slot in known else None for slot in wanted]
    free = [i for i in range(len(bound)) if i not in bundles]
    for place, slot in enumerate(wanted):
        if bundles[place] is None:
            fitting = [i for i in free if slot.node == bound[i].node and len(slot.ranks) == len(bound[i].ranks)]
            if not fitting:
                return None
            bundles[place] = fitting[0]
            free.remove(fitting[0])
    return [bundle for bundle in bundles if bundle is not None]
