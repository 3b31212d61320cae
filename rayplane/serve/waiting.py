"""Requests that wait to be admitted, in the order in which they will be.

rank = (arrival_s + priority * patience_s, number)

So of requests that arrived within patience_s of each other the more urgent goes first, and one that has waited longer than that, for
each step of priority, is overtaken no more: nobody starves. A preempted sequence keeps its rank, so it goes before those after it.
Forks stand aside until the sequence that they are a fork of has its prompt computed, or will never have.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from rayplane.serve.request import Rank, Sequence


class WaitingQueue:
    """Sequences by rank, and beside them forks by the request that they wait for."""

    def __init__(self) -> None:
        self._ranked: list[tuple[Rank, Sequence]] = []
        self._forks: dict[str, list[Sequence]] = {}
        self._num_forks = 0

    def __len__(self) -> int:
        return len(self._ranked) + self._num_forks

    @property
    def head(self) -> Sequence | None:
        """The next to be admitted."""
        return self._ranked[0][1] if self._ranked else None

    def push(self, sequence: Sequence) -> None:
        """It waits from now on."""
        insort(self._ranked, (sequence.rank, sequence), key=_rank)

    def pop(self) -> Sequence:
        """The head, which waits no longer."""
        return self._ranked.pop(0)[1]

    def push_fork(self, sequence: Sequence) -> None:
        """It waits until `free_forks` is called with the request that it is a fork of."""
        self._forks.setdefault(sequence.request.fork_of, []).append(sequence)
        self._num_forks += 1

    def free_forks(self, request_id: str) -> None:
        """Its forks wait like all others."""
        if not self._num_forks:
            return
        for sequence in self._forks.pop(request_id, ()):
            self._num_forks -= 1
            self.push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It has ended while it waited."""
        place = bisect_left(self._ranked, sequence.rank, key=_rank)
        if place < len(self._ranked) and self._ranked[place][1] is sequence:
            del self._ranked[place]
            return
        forks = self._forks[sequence.request.fork_of]
        forks.remove(sequence)
        self._num_forks -= 1
        if not forks:
            del self._forks[sequence.request.fork_of]

    def num_tokens(self, enough: int) -> int:
        """Tokens that wait to be computed; not counted beyond `enough`."""
        total = 0
        for _, sequence in self._ranked:
            if total >= enough:
                break
            total += len(sequence.tokens)
        return total


def _rank(entry: tuple[Rank, Sequence]) -> Rank:
    return entry[0]
