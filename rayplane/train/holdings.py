"""Which host holds what of the copies in memory, and what follows: the newest whole one, and who sends whom which file.

hosts of ranks 0 to 3: a a b b           partner of 0, 1, 2, 3: 2, 3, 0, 1 (the next host's; none where all share one host)
step 15  a: rank-0, rank-1   b: rank-2, rank-3, rank-0, rank-1      whole, also without a
step 20  a: rank-0, rank-1   b: -                                   not whole: a save that was cut off never counts
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holding:
    """What one host has of a save. `mark` tells apart saves of the same step."""

    step: int
    mark: str
    needed: tuple[str, ...]
    """The files that the save consists of, wherever they are."""
    files: tuple[str, ...]
    """Those that are here."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A file that rank `source` sends and rank `target` writes on its host."""

    file: str
    source: int
    target: int


def lead(hosts: Sequence[str], rank: int) -> int:
    """The first rank on a rank's host; `hosts` has each rank's."""
    return hosts.index(hosts[rank])


def partner(hosts: Sequence[str], rank: int) -> int | None:
    """The rank on the next host that keeps another copy of a rank's file; None where there is one host."""
    names = list(dict.fromkeys(hosts))
    if len(names) == 1:
        return None
    here = names.index(hosts[rank])
    place = [r for r, host in enumerate(hosts) if host == names[here]].index(rank)
    there = [r for r, host in enumerate(hosts) if host == names[(here + 1) % len(names)]]
    return there[place % len(there)]


def needed_bytes(hosts: Sequence[str], sizes: Sequence[int]) -> dict[str, int]:
    """What a save takes on each host when the ranks' files have these sizes."""
    out = dict.fromkeys(hosts, 0)
    for rank, size in enumerate(sizes):
        out[hosts[rank]] += size
        if (other := partner(hosts, rank)) is not None:
            out[hosts[other]] += size
    return out


def newest_whole(holdings: Collection[Sequence[Holding]], least: int) -> Holding | None:
    """The newest save, of step `least` or later, of which every file is on some host; each item is what a host has."""
    saves: dict[tuple[int, str], tuple[Holding, set[str]]] = {}
    for holding in (h for of_host in holdings for h in of_host if h.step >= least):
        saves.setdefault((holding.step, holding.mark), (holding, set()))[1].update(holding.files)
    whole = [holding for holding, files in saves.values() if files.issuperset(holding.needed)]
    return max(whole, key=lambda h: (h.step, h.mark), default=None)


def transfers(hosts: Sequence[str], wanted: Sequence[Collection[str]], held: Mapping[str, Collection[str]]) -> tuple[Transfer, ...]:
    """What is to be sent so that each rank's host has the files that the rank wants; the same order on every rank.

    `wanted`: by rank; `held`: by host. A host's ranks take turns at sending, and who wants a file first writes it.
    """
    out: dict[tuple[str, str], Transfer] = {}
    for rank, files in enumerate(wanted):
        for file in sorted(files):
            if file in held[hosts[rank]] or (hosts[rank], file) in out:
                continue
            source_host = next(host for host in dict.fromkeys(hosts) if file in held[host])
            senders = [r for r, host in enumerate(hosts) if host == source_host]
            out[hosts[rank], file] = Transfer(file, senders[len(out) % len(senders)], rank)
    return tuple(out.values())
