"""Decides what each step computes. It has no clock, no thread, no I/O: the engine tells it the time and carries batches to the ranks.

    scheduler.add(request)                       refused by RequestError, or it waits
    scheduler.expire(now_s) -> outputs           those whose deadline has passed
    scheduler.schedule(now_s) -> batch | None    None: nothing to do, or limits.batches_in_flight batches are out already
    scheduler.arrays(batch) -> StepArrays        at once, before the next call; steps go to the ranks in this order
    scheduler.update(batch, sampled) -> outputs  when a batch is back, the oldest first; one Sampled for each of batch.sampled
    scheduler.finish(id, reason)                 at any time: the client has gone, or its text holds a stop string

There are no phases: each sequence closes the gap between its tokens and those computed, be they of its prompt, of its output or, once
it was preempted, of both (turns.py has the order). With its gap closed it waits until that batch is back; chunks of one prompt may be
in several batches, which the ranks run in order. What a sequence holds that ends goes when the last batch that it is in is back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from rayplane.errors import RequestError
from rayplane.serve.batch import Batch, StepArrays, StepBuilder
from rayplane.serve.kv import KvCache
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.ngram import PromptLookup
from rayplane.serve.outputs import Output, Sampled, SchedulerStats
from rayplane.serve.request import FinishReason, Request, Sequence, State
from rayplane.serve.turns import Turns

SHORTEST_MATCH = 2
"""Fewer tokens at a text's end are looked up in it only where no more are to be: what followed them says little."""


class Scheduler:
    """The requests of one replica. `end_tokens` end a text, unless its request ignores them."""

    def __init__(self, limits: SchedulerLimits, end_tokens: frozenset[int] = frozenset()):
        self.limits = limits
        self.kv = KvCache(limits)
        self._turns = Turns(limits, self.kv)
        self._builder = StepBuilder(self.kv.tables, limits.block_size)
        self._end_tokens = end_tokens
        self._by_id: dict[str, Sequence] = {}
        self._in_flight: deque[Batch] = deque()
        self._deadlines: list[tuple[float, str]] = []
        self._num_sequences = 0
        self._num_batches = 0
        self._num_drafted = self._num_accepted = 0

    @property
    def has_work(self) -> bool:
        """Some request has not ended, or some batch is not back."""
        return bool(self._by_id or self._in_flight)

    @property
    def stats(self) -> SchedulerStats:
        """How it stands."""
        pool, num_waiting = self.kv.pool, len(self._turns.waiting)
        return SchedulerStats(
            num_waiting=num_waiting,
            num_running=len(self._by_id) - num_waiting,
            num_in_flight=len(self._in_flight),
            kv_usage_ratio=pool.usage,
            num_preemptions=self._turns.num_preemptions,
            prefix_asked_tokens=pool.counts.asked * self.limits.block_size,
            prefix_hit_tokens=pool.counts.hits * self.limits.block_size,
            num_drafted_tokens=self._num_drafted,
            num_accepted_tokens=self._num_accepted,
        )

    def add(self, request: Request) -> None:
        """It waits from now on. RequestError where it never could be served."""
        sequence = self._admissible(request)
        self._num_sequences += 1
        self._by_id[request.id] = sequence
        if request.deadline_s is not None:
            heapq.heappush(self._deadlines, (request.deadline_s, request.id))
        if sequence.parent is not None and not sequence.parent.shareable:
            self._turns.waiting.push_fork(sequence)
        else:
            self._turns.waiting.push(sequence)

    def finish(self, request_id: str, reason: FinishReason) -> bool:
        """End a request; its blocks return now, or with the last batch that it is in. False when it had ended before."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return False
        if sequence.state is State.WAITING:
            self._turns.waiting.remove(sequence)
        self._end(sequence, reason)
        return True

    def expire(self, now_s: float) -> list[Output]:
        """End the requests whose deadline has passed."""
        outputs = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, request_id = heapq.heappop(self._deadlines)
            sequence = self._by_id.get(request_id)
            if sequence is not None and sequence.request.deadline_s == deadline_s:
                self.finish(request_id, FinishReason.DEADLINE)
                outputs.append(Output(request_id, (), None, FinishReason.DEADLINE, sequence.num_output, sequence.cached))
        return outputs

    def schedule(self, now_s: float) -> Batch | None:
        """The next step, which is in flight from now on."""
        if len(self._in_flight) >= self.limits.batches_in_flight:
            return None
        batch = Batch(self._num_batches)
        self._turns.choose(batch, sum(b.num_prompt_tokens for b in self._in_flight), now_s)
        if not batch.sequences:
            return None
        # Later batches may share what this one computes, but not this one itself: within a step nothing says what is written first.
        for sequence in batch.sequences:
            self.kv.register(sequence)
        batch.copies = self.kv.take_copies()
        self._num_batches += 1
        self._in_flight.append(batch)
        return batch

    def arrays(self, batch: Batch, notes: bytes = b"") -> StepArrays:
        """What the ranks need of the batch that was scheduled last."""
        return self._builder.build(batch, notes)

    def update(self, batch: Batch, sampled: Iterable[Sampled]) -> list[Output]:
        """The oldest batch is back, with the tokens of those that were due one."""
        assert self._in_flight and batch is self._in_flight[0], "batches come back in the order in which they were scheduled"
        self._in_flight.popleft()
        outputs, results = [], iter(sampled)
        for sequence, drafts, samples in zip(batch.sequences, batch.drafts, batch.samples, strict=True):
            sequence.in_flight -= 1
            result = next(results) if samples else None
            if result is not None:
                self._num_drafted += len(drafts)
                self._num_accepted += len(result.tokens) - 1
            if sequence.state is State.FINISHED:
                if sequence.in_flight == 0:
                    self.kv.release(sequence)
            elif result is not None:
                assert 1 <= len(result.tokens) <= 1 + len(drafts), "as many tokens as drafts were right, and one more"
                outputs.append(self._extend(sequence, result))
        assert next(results, None) is None, "more results than sequences that were due a token"
        return outputs

    def _admissible(self, request: Request) -> Sequence:
        limits, tokens = self.limits, [*request.prompt, *request.generated]
        if request.id in self._by_id:
            raise RequestError("id", f"{request.id} is being served already; give each request an id of its own")
        if len(tokens) >= limits.max_context:
            held = f"the context holds {limits.max_context}, of which at least one is generated"
            raise RequestError("prompt", f"{len(tokens)} tokens, but {held}; shorten it")
        most = min(len(request.prompt) + request.params.max_tokens, limits.max_context)
        if len(tokens) >= most:
            message = f"{len(request.generated)} tokens are there already, and max_tokens is {request.params.max_tokens}; raise it"
            raise RequestError("max_tokens", message)
        parent = self._by_id.get(request.fork_of)
        if parent is not None and (parent.request.prompt, parent.request.salt) != (request.prompt, request.salt):
            raise RequestError("fork_of", f"{request.fork_of} has another prompt; leave it out")
        return Sequence(
            request=request,
            number=self._num_sequences,
            rank=(request.arrival_s + request.priority * limits.patience_s, self._num_sequences),
            max_length=most,
            end_tokens=request.params.stop_tokens | (frozenset() if request.params.ignore_eos else self._end_tokens),
            tokens=tokens,
            parent=None if request.generated else parent,
            lookup=PromptLookup(limits.longest_match, min(SHORTEST_MATCH, limits.longest_match)) if limits.num_drafts else None,
        )

    def _extend(self, sequence: Sequence, result: Sampled) -> Output:
        """Keep the tokens up to the one that ends it; what was computed beyond them is forgotten."""
        tokens, logprobs, finish = result.tokens, result.logprobs, None
        before, length = sequence.num_output, len(sequence.tokens)
        for i, token in enumerate(tokens):
            if token in sequence.end_tokens and before + i >= sequence.request.params.min_tokens:
                finish = FinishReason.STOP
            elif length + i + 1 >= sequence.max_length:
                finish = FinishReason.LENGTH
            if finish is not None:
                tokens, logprobs = tokens[: i + 1], logprobs and logprobs[: i + 1]
                break
        sequence.tokens += tokens
        sequence.computed = length + len(tokens) - 1
        sequence.shareable = True
        if finish is not None:
            self.kv.register(sequence)
            self._end(sequence, finish)
        else:
            self._turns.waiting.free_forks(sequence.request.id)
            if sequence.lookup is not None:
                most = min(self.limits.num_drafts, sequence.max_length - len(sequence.tokens) - 1)
                sequence.drafts = sequence.lookup.propose(sequence.tokens, most)
        return Output(sequence.request.id, tokens, logprobs, finish, before + len(tokens), sequence.cached)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.state, sequence.finish = State.FINISHED, reason
        sequence.lookup, sequence.parent, sequence.drafts = None, None, []
        del self._by_id[sequence.request.id]
        if sequence.in_flight == 0:
            self.kv.release(sequence)
        self._turns.waiting.free_forks(sequence.request.id)
