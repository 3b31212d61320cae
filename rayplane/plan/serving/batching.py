"""Continuous batching played step by step: which requests a replica takes into its next step, and how long that lasts.

     coming ──▶ waiting ──admitted while the cache has room──▶ prompt, chunk by chunk ──▶ decodes, a token a step ──▶ ended
                   ▲                                                                         │
                   └───────── put off, last come first, when the cache runs over ────────────┘

Steps in which nothing comes, ends or overflows are taken together, since their times grow evenly with the context.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rayplane.plan.serving.serve import Replica

WATERMARK = 100
"""A sequence is admitted only while this part of the cache stays free for others to grow."""


@dataclass(slots=True)
class Request:
    """One request on its way through a replica; times in seconds."""

    arrival: float
    prompt: int
    """Tokens to compute before the next one: of the prompt, and what was produced before the sequence was put off."""
    output: int
    """Tokens still to produce."""
    computed: int = 0
    """Tokens of it that are in the cache: at first those that it has in common with earlier ones, which count once for each."""
    first: float = -1.0
    last: float = 0.0
    produced: int = 0
    began: int = 0
    """Decode steps of the replica when it began to decode."""

    @property
    def ttft_s(self) -> float:
        """From its arrival to its first token."""
        return self.first - self.arrival

    @property
    def tpot_s(self) -> float | None:
        """Mean between tokens."""
        return (self.last - self.first) / (self.produced - 1) if self.produced > 1 else None


@dataclass(slots=True)
class Batching:
    """The state of a replica between two steps. `follow` is told of each request that ended."""

    replica: Replica
    capacity: int
    """Tokens that the cache holds."""
    follow: Callable[[float], None]
    now: float = 0.0
    told: float = 0.0
    """When the last token so far has left the socket."""
    tokens: int = 0
    """Produced so far."""
    put_off: int = 0
    ended: list[Request] = field(default_factory=list)
    coming: list[tuple[float, int, Request]] = field(default_factory=list)
    """(when the scheduler sees it, number, request), a heap."""
    waiting: deque[Request] = field(default_factory=deque)
    current: Request | None = None
    """Whose prompt is being computed."""
    running: list[tuple[int, int, Request]] = field(default_factory=list)
    """(decode step at which it ends, number, request), a heap."""
    decoded: int = 0
    """Decode steps so far."""
    context: int = 0
    """Tokens in the cache of sequences that decode."""
    remaining: int = 0
    """Tokens that they are still to produce."""
    held: float = 0.0
    """Tokens of the cache that are reserved for prompts which are being computed, and for their output."""
    numbers: int = 0

    def come(self, request: Request) -> None:
        """Hand a request to the socket; the scheduler sees it a little later."""
        engine = self.replica.engine
        self.numbers += 1
        seen = request.arrival + engine.request_s + engine.prompt_token_s * request.prompt
        heapq.heappush(self.coming, (seen, self.numbers, request))

    def step(self) -> None:
        """Take one step with prompts, or all steps until something happens."""
        while self.coming and self.coming[0][0] <= self.now:
            self.waiting.append(heapq.heappop(self.coming)[2])
        while self._free < len(self.running) and self._put_off():
            pass
        attention, prompt, started = self._prompts()
        if prompt:
            self._with_prompts(attention, prompt, started)
        elif self.running:
            self._decode()
        else:
            self.now = max(self.now, self.coming[0][0])
        self._end()

    @property
    def _free(self) -> int:
        return self.capacity - self.context - (self.current.computed if self.current else 0)

    def _admits(self, request: Request) -> bool:
        if not self.running and self.held < 1:
            return True
        growth = 0 if self.replica.engine.reserve == 1 else max(len(self.running), self.capacity // WATERMARK)
        used = self.context + self.held + self.replica.engine.reserve * self.remaining
        room = used + self._reserved(request) + growth <= self.capacity
        return room and len(self.running) < self.replica.engine.max_sequences

    def _reserved(self, request: Request) -> float:
        return request.prompt + self.replica.engine.reserve * request.output

    def _prompts(self) -> tuple[float, int, list[Request]]:
        """Seconds of attention, tokens, and whose prompts end, of the prompts that the next step takes."""
        cut, started = self.replica.cut, list[Request]()
        left = self.replica.engine.chunk * cut.pp * cut.cp - (0 if self.replica.engine.prefill_first else len(self.running))
        attention, budget = 0.0, left
        while left > 0:
            if self.current is None:
                if not self.waiting or not self._admits(self.waiting[0]):
                    break
                self.current = self.waiting.popleft()
                self.held += self._reserved(self.current)
            request = self.current
            take = min(left, request.prompt - request.computed)
            attention += self.replica.prompt_s(request.computed, take)
            request.computed += take
            left -= take
            if request.computed == request.prompt:
                started.append(request)
                self.current = None
        return attention, max(0, budget - left), started

    def _with_prompts(self, attention: float, prompt: int, started: list[Request]) -> None:
        decoding = 0 if self.replica.engine.prefill_first else len(self.running)
        if decoding:
            attention += self.replica.cache_s(decoding, self.context)
        tokens = decoding + len(started)
        taken = self._taken(self.replica.counts(decoding, prompt, len(started)).total + attention, tokens)
        self.now += taken
        self._tell(tokens, 1)
        if decoding:
            self._advance(1)
        for request in started:
            self._begin(request, self.told + taken * (1 - 1 / self.replica.cut.pp))

    def _begin(self, request: Request, when: float) -> None:
        self.held = max(0.0, self.held - self._reserved(request))
        if request.first < 0:
            request.first = when
            request.produced, request.output = 1, request.output - 1
            self.tokens += 1
        request.began = self.decoded
        self.context += request.prompt
        self.remaining += request.output
        self.numbers += 1
        heapq.heappush(self.running, (self.decoded + request.output, self.numbers, request))

    def _taken(self, model_s: float, tokens: int) -> float:
        engine, cut = self.replica.engine, self.replica.cut
        host = cut.pp * engine.step_s + engine.sequence_s * tokens / cut.attention_dp
        return max(model_s, host) if engine.overlapped else model_s + host

    def _tell(self, tokens: int, steps: int) -> None:
        """One process hands out the tokens in their order; where it is slower than the steps, they queue."""
        each = tokens * self.replica.engine.token_s
        self.told = max(self.told + steps * each, self.now + each)

    def _decode(self) -> None:
        """All steps until a sequence ends, a request comes or the cache is full."""
        decoding, counts = len(self.running), self.replica.counts(len(self.running), 0, 0).total
        steps = self.running[0][0] - self.decoded
        if self.coming:
            one = self._taken(counts + self.replica.cache_s(decoding, self.context), decoding)
            steps = min(steps, max(1, math.ceil((self.coming[0][0] - self.now) / one)))
        steps = min(steps, max(1, self._free // decoding))
        mean = self.context + decoding * (steps - 1) / 2
        self.now += steps * self._taken(counts + self.replica.cache_s(decoding, mean), decoding)
        self._tell(decoding, steps)
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        self.decoded += steps
        self.context += steps * len(self.running)
        self.remaining -= steps * len(self.running)
        self.tokens += steps * len(self.running)

    def _put_off(self) -> bool:
        """Drop the cache of the sequence that began last, unless it is alone."""
        if len(self.running) < 2:
            return False
        request = max(self.running, key=lambda entry: entry[1])[2]
        self.running = [entry for entry in self.running if entry[2] is not request]
        heapq.heapify(self.running)
        made = self.decoded - request.began
        self.context -= request.prompt + made
        self.remaining -= request.output - made
        request.prompt, request.output, request.computed = request.prompt + made, request.output - made, 0
        request.produced += made
        self.waiting.appendleft(request)
        self.put_off += 1
        return True

    def _end(self) -> None:
        while self.running and self.running[0][0] <= self.decoded:
            request = heapq.heappop(self.running)[2]
            made = self.decoded - request.began
            self.context -= request.prompt + made
            request.produced += made
            request.last = max(self.told, request.first)
            self.ended.append(request)
            self.follow(self.told)
