"""Whose turn it is: the sequences that wait, read their prompts and decode, and what each step takes of them.

  1. decode   one token, and its drafts, of each sequence that has a new one; those longest without a batch first
  2. read     chunks of admitted prompts, by rank
  3. admit    the head of the waiting queue, which is never passed over

A batch takes 1 / batches_in_flight of the decoding sequences, and of the prompt tokens that wait or are on their way, so that every
stage of a pipeline has a batch and all batches are alike. Drafts take only what nobody else needs.
Without a free block the sequence of the worst rank is preempted. The best one always gets on, so in the end all of them do.
"""

from __future__ import annotations

from bisect import insort

from rayplane.serve.batch import Batch
from rayplane.serve.kv import KvCache
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.request import Rank, Sequence, State
from rayplane.serve.waiting import WaitingQueue


class Turns:
    """The sequences of a replica that have not ended."""

    def __init__(self, limits: SchedulerLimits, kv: KvCache):
        self.waiting = WaitingQueue()
        self.num_preemptions = 0
        self._limits = limits
        self._kv = kv
        self._reading: list[Sequence] = []
        """Running, some of its tokens not in a batch yet; by rank."""
        self._decoding: list[Sequence] = []
        """Running, all of its tokens in a batch but perhaps the last; the one longest without a batch first."""

    def choose(self, batch: Batch, prompt_tokens_in_flight: int, now_s: float) -> None:
        """Fill a batch. What has ended since the last one is not looked at again."""
        preempted = self.num_preemptions
        self._decoding = [s for s in self._decoding if s.state is State.RUNNING]
        self._reading = [s for s in self._reading if s.state is State.RUNNING]
        self._decode(batch)
        num_decoded = batch.num_tokens
        room = self._read(batch, self._prompt_room(batch, prompt_tokens_in_flight))
        if self.num_preemptions == preempted:
            self._admit(batch, room, now_s)
        batch.num_prompt_tokens = batch.num_tokens - num_decoded
        self._sort_out(batch)

    def _decode(self, batch: Batch) -> None:
        limits, kv = self._limits, self._kv
        share = -(-len(self._decoding) // limits.batches_in_flight)
        for sequence in tuple(self._decoding):
            if len(batch.sequences) >= share or batch.num_tokens >= limits.max_batch_tokens:
                break
            length = len(sequence.tokens)
            if sequence.computed >= length or sequence.state is not State.RUNNING:
                continue
            if length > len(sequence.blocks) * limits.block_size and not self._make_room(sequence):
                continue
            drafts = sequence.drafts
            if drafts:
                spare_tokens = limits.max_batch_tokens - batch.num_tokens - (share - len(batch.sequences))
                spare_blocks = max(0, kv.pool.num_free - len(self._decoding))
                held = (len(sequence.blocks) + spare_blocks) * limits.block_size
                drafts = drafts[: max(0, min(spare_tokens, held - length))]
                kv.grow(sequence, length + len(drafts))
            _take(batch, sequence, 1 + len(drafts), drafts)

    def _make_room(self, sequence: Sequence) -> bool:
        """Blocks for its last token. False where it has to wait for a batch in flight, or is itself the one to go."""
        while not self._kv.grow(sequence, len(sequence.tokens)):
            victim = max((*self._decoding, *self._reading), key=_rank)
            if victim.in_flight:
                return False
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back into the queue, by its old rank; its tokens are computed again, but for those still found in the prefix cache."""
        assert sequence.in_flight == 0
        (self._decoding if sequence in self._decoding else self._reading).remove(sequence)
        self._kv.release(sequence)
        sequence.state, sequence.computed, sequence.shareable = State.WAITING, 0, False
        self.waiting.push(sequence)
        self.num_preemptions += 1

    def _prompt_room(self, batch: Batch, prompt_tokens_in_flight: int) -> int:
        limits = self._limits
        room = limits.max_batch_tokens - batch.num_tokens
        if batch.num_tokens or limits.batches_in_flight > 1:
            room = min(room, limits.prefill_tokens)
        if limits.batches_in_flight > 1:
            waiting = self.waiting.num_tokens(limits.prefill_tokens * limits.batches_in_flight)
            todo = prompt_tokens_in_flight + sum(s.gap for s in self._reading) + waiting
            room = min(room, max(limits.min_chunk_tokens, -(-todo // limits.batches_in_flight)))
        return room

    def _read(self, batch: Batch, room: int) -> int:
        """What is left of `room`."""
        for sequence in self._reading:
            num = min(sequence.gap, room)
            if num <= 0:
                break
            _take(batch, sequence, num, [])
            room -= num
        return room

    def _admit(self, batch: Batch, room: int, now_s: float) -> None:
        """While there are tokens, rows and blocks, one to spare for each sequence that runs among them."""
        while room > 0 and self._kv.has_row and (sequence := self.waiting.head) is not None:
            num_running = len(self._decoding) + len(self._reading)
            if not self._kv.admit(sequence, _parent(sequence), reserve=num_running):
                return
            self.waiting.pop()
            sequence.state, sequence.parent = State.RUNNING, None
            if sequence.started_s is None:
                sequence.started_s, sequence.cached = now_s, min(sequence.computed, len(sequence.request.prompt))
            insort(self._reading, sequence, key=_rank)
            num = min(sequence.gap, room)
            _take(batch, sequence, num, [])
            room -= num

    def _sort_out(self, batch: Batch) -> None:
        """Those of the batch are behind the others from now on, and the ones that have closed their gap decode."""
        chosen = set(map(id, batch.sequences))
        closed = [s for s, samples in zip(batch.sequences, batch.samples, strict=True) if samples]
        self._decoding = [s for s in self._decoding if id(s) not in chosen] + closed
        self._reading = [s for s in self._reading if s.gap > 0]


def _take(batch: Batch, sequence: Sequence, num: int, drafts: list[int]) -> None:
    batch.add(sequence, num, drafts, samples=sequence.computed + num >= len(sequence.tokens))
    sequence.computed += num
    sequence.in_flight += 1


def _parent(fork: Sequence) -> Sequence | None:
    """The sequence whose computed prompt a fork can share now."""
    parent = fork.parent
    return parent if parent is not None and parent.state is State.RUNNING and parent.shareable else None


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank
