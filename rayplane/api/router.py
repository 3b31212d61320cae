"""Which replica gets a request: the one that then has the least work, in tokens.

work(replica)            = prompt tokens sent and not computed + tokens still to generate, of all requests it has
score(replica, request)  = work(replica) + tokens of the prompt that its cache does not have

    replica   work   cached of 1000   score
    a         1400              900    1500
    b          700                0    1700      so a: computing the prefix again would cost more than waiting
    b          400                0    1400      so b: however popular the prefix, a is at most its length ahead

Work is counted here, as requests and tokens pass by, never taken from what replicas report: reports are old, and everyone who reads
them would go to the same replica. Equal scores are taken in turns. A session stays where it was unless that costs more than
`session_margin` tokens over the best.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rayplane.api.prefix_index import PrefixIndex, chain

FIRST_MEAN_OUTPUT = 128.0
MEAN_WEIGHT = 0.05
"""Of the newest answer in the running mean of their lengths."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a replica can hold."""

    block: int
    kv_tokens: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as far as routing goes. `prompt` includes tokens that another replica has already generated."""

    prompt: tuple[int, ...]
    max_output: int
    session: str = ""
    salt: str = ""


@dataclass(slots=True)
class _Work:
    """What one request still costs its replica."""

    prefill: int
    decode: int
    held: int
    """Tokens of it that the cache holds, or will hold."""


@dataclass(slots=True)
class _Replica:
    capacity: Capacity
    index: PrefixIndex
    open: bool = True
    """Whether it takes new requests."""
    requests: dict[int, _Work] = field(default_factory=dict)
    work: int = 0
    held: int = 0

    def uncached(self, ask: Ask, hashes: tuple[int, ...]) -> int:
        """Tokens of the prompt that it would have to compute."""
        return len(ask.prompt) - self.index.matched(hashes) * self.capacity.block

    def slots(self) -> int:
        """How many requests like those it has it can run at a time."""
        if not self.held:
            return self.capacity.max_sequences
        by_cache = self.capacity.kv_tokens * len(self.requests) // self.held
        return max(1, min(self.capacity.max_sequences, by_cache))


class Router:
    """Counts what each replica has, and chooses. It does nothing by itself."""

    def __init__(self, session_margin: float = 512.0, max_sessions: int = 10_000):
        self._margin = session_margin
        self._max_sessions = max_sessions
        self._replicas: dict[str, _Replica] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._turn = 0
        self._mean_output = FIRST_MEAN_OUTPUT

    def join(self, name: str, capacity: Capacity) -> None:
        """A replica is there, with nothing in its cache."""
        self._replicas[name] = _Replica(capacity, PrefixIndex(max(1, capacity.kv_tokens // capacity.block)))

    def close(self, name: str) -> None:
        """It takes no new requests from now on."""
        if name in self._replicas:
            self._replicas[name].open = False

    def leave(self, name: str) -> None:
        """It is gone, and its requests with it."""
        self._replicas.pop(name, None)

    def choose(self, ask: Ask) -> str | None:
        """The replica for a request; None when none takes any."""
        there = {name: replica for name, replica in self._replicas.items() if replica.open}
        if not there:
            return None
        chains = {block: chain(ask.prompt, block, ask.salt) for block in {replica.capacity.block for replica in there.values()}}
        scores = {name: replica.work + replica.uncached(ask, chains[replica.capacity.block]) for name, replica in there.items()}
        least = min(scores.values())
        usual = self._sessions.get(ask.session) if ask.session else None
        if usual in scores and scores[usual] <= least + self._margin:
            return usual
        best = [name for name, score in scores.items() if score == least]
        self._turn += 1
        return best[self._turn % len(best)]

    def start(self, name: str, request: int, ask: Ask) -> None:
        """The request goes to this replica now."""
        replica = self._replicas[name]
        hashes = chain(ask.prompt, replica.capacity.block, ask.salt)
        work = _Work(replica.uncached(ask, hashes), min(ask.max_output, round(self._mean_output)), len(ask.prompt))
        replica.index.add(hashes)
        replica.requests[request] = work
        replica.work += work.prefill + work.decode
        replica.held += work.held
        if ask.session:
            self._sessions[ask.session] = name
            self._sessions.move_to_end(ask.session)
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)

    def progress(self, name: str, request: int, tokens: int) -> None:
        """So many tokens of the request have come; with the first ones its prompt is computed."""
        replica = self._replicas[name]
        work = replica.requests[request]
        done = min(work.decode, tokens)
        replica.work -= work.prefill + done
        replica.held += tokens
        work.prefill, work.decode, work.held = 0, work.decode - done, work.held + tokens

    def finish(self, name: str, request: int, tokens: Iterable[int], salt: str, num_output: int | None) -> None:
        """The request has left the replica, whose cache now has `tokens`. `num_output` is None when it was cut short."""
        replica = self._replicas[name]
        work = replica.requests.pop(request)
        replica.work -= work.prefill + work.decode
        replica.held -= work.held
        replica.index.add(chain(tuple(tokens), replica.capacity.block, salt))
        if num_output is not None:
            self._mean_output += MEAN_WEIGHT * (num_output - self._mean_output)

    def work(self, name: str) -> int:
        """Tokens that the replica has before it."""
        return self._replicas[name].work

    def room(self) -> int:
        """Requests that could run at once beside those that are there; below zero, so many wait."""
        return sum(replica.slots() - len(replica.requests) for replica in self._replicas.values() if replica.open)

    def running(self, name: str) -> int:
        """Requests that the replica has."""
        return len(self._replicas[name].requests)
