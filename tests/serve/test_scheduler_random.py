"""Whatever comes, and in whatever order: every request ends, with the text it has alone, and nothing is left behind."""

import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from fake_model import VOCAB, FakeRanks, continuation, serve
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.outputs import Sampled
from rayplane.serve.request import FinishReason, Request
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.scheduler import Scheduler

CONTEXT = 24
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple)


@st.composite
def limits(draw):
    size = draw(st.sampled_from([1, 2, 4]))
    least = -(-CONTEXT // size)
    return SchedulerLimits(
        num_blocks=least + draw(st.integers(0, 2 * least)),
        max_context=CONTEXT,
        block_size=size,
        max_sequences=draw(st.integers(1, 5)),
        max_batch_tokens=draw(st.sampled_from([1, 3, 8, 64])),
        prefill_tokens=draw(st.sampled_from([1, 7, 64])),
        batches_in_flight=draw(st.integers(1, 3)),
        min_chunk_tokens=draw(st.sampled_from([1, 4])),
        prefix_cache=draw(st.booleans()),
        num_drafts=draw(st.sampled_from([0, 0, 2, 4])),
        patience_s=draw(st.sampled_from([0.0, 3.0])),
    )


@st.composite
def requests(draw):
    made = []
    for i in range(draw(st.integers(1, 9))):
        twin = draw(st.sampled_from([None, None, *made]))
        fork = twin is not None and draw(st.booleans())
        made.append(
            Request(
                id=str(i),
                prompt=twin.prompt if twin else draw(PROMPTS),
                params=SamplingParams(max_tokens=draw(st.integers(1, 12))),
                arrival_s=float(draw(st.integers(0, 20))),
                priority=draw(st.integers(-1, 1)),
                deadline_s=draw(st.sampled_from([None, None, None, 15.0])),
                salt=twin.salt if fork else draw(st.sampled_from(["", "adapter"])),
                fork_of=twin.id if fork else "",
            )
        )
    return made


@dataclass
class Replica:
    """A scheduler, its fake ranks, and all that must hold at every step."""

    limits: SchedulerLimits
    requests: list[Request]
    aborts: dict[int, str]
    texts: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, FinishReason] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)

    def run(self, order):
        scheduler, ranks = Scheduler(self.limits), FakeRanks(self.limits)
        batches = deque()
        self.texts = {r.id: [] for r in self.requests}
        for now, back in zip(range(5000), itertools.cycle(order), strict=False):
            for request in self.requests:
                if request.arrival_s == now:
                    scheduler.add(request)
            if (gone := self.aborts.get(now)) is not None and scheduler.finish(gone, FinishReason.ABORT):
                self.ends[gone] = FinishReason.ABORT
            for output in scheduler.expire(float(now)):
                self.ends[output.id] = output.finish
            batch = scheduler.schedule(float(now))
            if batch is not None:
                self.check(scheduler, batch)
                ranks.submit(scheduler.arrays(batch))
                batches.append(batch)
            if batches and (back or batch is None):
                self.keep(scheduler.update(batches.popleft(), ranks.result()))
            if now > 25 and not scheduler.has_work:
                return scheduler
        raise AssertionError("it never ends")

    def check(self, scheduler, batch):
        """Within the budget, nothing written that two sequences hold, and never two steps at once where a token is unknown."""
        limits, pool = self.limits, scheduler.kv.pool
        assert batch.num_tokens == sum(batch.nums) <= limits.max_batch_tokens
        if batch.num_prompt_tokens < batch.num_tokens or limits.batches_in_flight > 1:
            assert batch.num_prompt_tokens <= limits.prefill_tokens
        assert len(set(batch.sequences)) == len(batch.sequences) <= limits.max_sequences
        assert len(scheduler._in_flight) <= limits.batches_in_flight
        for sequence, begin, num, drafts in zip(batch.sequences, batch.begins, batch.nums, batch.drafts, strict=True):
            assert num >= 1 and begin + num - len(drafts) <= len(sequence.tokens)
            assert begin + num <= sequence.max_length
            written = range(begin // limits.block_size, -(-(begin + num) // limits.block_size))
            assert not any(pool.is_shared(sequence.blocks[i]) for i in written)
            assert list(scheduler.kv.tables[sequence.row, : len(sequence.blocks)]) == sequence.blocks

    def keep(self, outputs):
        for output in outputs:
            assert output.id not in self.ends
            self.texts[output.id] += output.tokens
            assert output.num_output == len(self.texts[output.id])
            if output.finish is not None:
                self.ends[output.id] = output.finish


@settings(max_examples=250, deadline=None)
@given(
    limits(),
    requests(),
    st.dictionaries(st.integers(0, 30), st.integers(0, 8).map(str), max_size=3),
    st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_every_request_ends_with_the_text_it_has_alone(limits, requests, aborts, order):
    replica = Replica(limits, requests, aborts)
    scheduler = replica.run([*order, True])
    pool = scheduler.kv.pool
    assert (pool.num_free, len(scheduler.kv._rows)) == (limits.num_blocks, limits.max_sequences)
    assert len(scheduler._turns.waiting) == 0
    for request in requests:
        alone = continuation(request.prompt, min(request.params.max_tokens, CONTEXT - len(request.prompt)))
        text, end = replica.texts[request.id], replica.ends[request.id]
        assert text == alone[: len(text)]
        assert end is not FinishReason.LENGTH or text == alone


@pytest.mark.parametrize(
    "changes", [{}, {"prefix_cache": False}, {"num_drafts": 3}, {"batches_in_flight": 3, "min_chunk_tokens": 4}], ids=str
)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_text_is_the_same_with_many_others_and_little_memory(changes, chunk):
    bounds = {"max_context": 64, "block_size": 4, "max_sequences": 16, "max_batch_tokens": 64, "prefill_tokens": chunk}
    limits = SchedulerLimits(num_blocks=20, **bounds, **changes)
    asked = [Request(str(i), tuple((i * j * j + j) % VOCAB for j in range(5 + i)), SamplingParams(max_tokens=20)) for i in range(33)]
    scheduler = Scheduler(limits)
    texts = serve(scheduler, asked)
    assert texts == {r.id: continuation(r.prompt, 20) for r in asked}
    assert scheduler.stats.num_preemptions > 0


def test_a_modest_request_is_served_within_its_patience_under_a_flood_of_urgent_ones():
    limits = SchedulerLimits(32, 32, block_size=4, max_sequences=2, patience_s=10.0)
    scheduler, ranks = Scheduler(limits), FakeRanks(limits)
    modest = Request("modest", (1, 2, 3), SamplingParams(max_tokens=4), arrival_s=3.0, priority=2)
    for now in range(200):
        scheduler.add(replace(modest, id=f"urgent {now}", priority=0, arrival_s=float(now)))
        if now == 3:
            scheduler.add(modest)
        batch = scheduler.schedule(float(now))
        if "modest" in batch.scheduled:
            # The 24 urgent ones that came less than two priorities of 10 s after it go first; each takes 4 steps, two run at a time.
            assert 24 <= now <= 24 * 4 / 2
            return
        ranks.submit(scheduler.arrays(batch))
        scheduler.update(batch, ranks.result())
    raise AssertionError("it starved")


@given(num=st.integers(1, 12), budget=st.integers(1, 12), flights=st.integers(1, 4))
def test_with_enough_memory_each_sequence_decodes_again_after_a_bounded_number_of_steps(num, budget, flights):
    limits = SchedulerLimits(num * 8, 32, block_size=4, max_sequences=num, max_batch_tokens=budget, batches_in_flight=flights)
    scheduler, ranks, batches, seen = Scheduler(limits), FakeRanks(limits), deque(), {}
    for i in range(num):
        scheduler.add(Request(str(i), (i % VOCAB,), SamplingParams(max_tokens=20)))
    for step in range(2000):
        if (batch := scheduler.schedule(0.0)) is not None:
            for name in batch.scheduled:
                assert step - seen.get(name, step) <= 2 * (-(-num // budget) + flights)
                seen[name] = step
            ranks.submit(scheduler.arrays(batch))
            batches.append(batch)
        if batches and (batch is None or len(batches) == flights):
            for output in scheduler.update(batches.popleft(), ranks.result()):
                if output.finish:
                    del seen[output.id]
        elif not batches:
            break
    assert not scheduler.has_work


@pytest.mark.parametrize("flights", [2, 4])
def test_under_a_steady_load_all_batches_in_flight_are_alike(flights):
    """32 clients who ask again at once; lengths differ, so that batches would drift apart by themselves."""
    scheduler, batches, sizes, draw = Scheduler(SchedulerLimits(4000, 512, batches_in_flight=flights)), deque(), [], Random(0)

    def ask(name):
        prompt = tuple(draw.randrange(1000) for _ in range(draw.randint(64, 192)))
        scheduler.add(Request(name, prompt, SamplingParams(max_tokens=draw.randint(32, 96))))

    for i in range(32):
        ask(str(i))
    for _ in range(1500):
        if (batch := scheduler.schedule(0.0)) is not None:
            batches.append(batch)
            sizes.append(len(batch.sampled))
        if len(batches) == flights or batch is None:
            for output in scheduler.update(batches[0], [Sampled((1,))] * len(batches.popleft().sampled)):
                if output.finish:
                    ask(output.id)
    settled = sizes[100:]
    assert sum(settled) / len(settled) > 0.95 * 32 / flights
    assert max(settled) - min(settled) <= 6
