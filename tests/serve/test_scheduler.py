"""Arrivals and the batches that follow, as tables."""

import pytest
from fake_model import FakeRanks, batches, continuation, serve

from rayplane.errors import RayplaneError, RequestError
from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.outputs import Sampled
from rayplane.serve.request import FinishReason, Request
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.scheduler import Scheduler


def limits(**changes):
    small = {"num_blocks": 64, "max_context": 64, "block_size": 4, "max_sequences": 8, "max_batch_tokens": 8, "prefill_tokens": 8}
    return SchedulerLimits(**(small | changes))


def ask(name, prompt, out=2, **fields):
    """A request whose prompt is a number of tokens that no other prompt begins with, or the tokens themselves."""
    tokens = prompt if isinstance(prompt, tuple) else tuple((ord(name[0]) + i * i) % 11 for i in range(prompt))
    params = fields.pop("params", SamplingParams(max_tokens=out))
    return Request(name, tokens, params, **fields)


TABLES = {
    "a prompt is read in chunks beside those that decode": (
        {},
        {0: [ask("a", 5, 4)], 1: [ask("b", 10, 2)]},
        [{"a": 5}, {"a": 1, "b": 7}, {"a": 1, "b": 3}, {"a": 1, "b": 1}],
    ),
    "a chunk is as long as the limit says": (
        {"max_batch_tokens": 3, "prefill_tokens": 3},
        {0: [ask("a", 7, 2)]},
        [{"a": 3}, {"a": 3}, {"a": 1}, {"a": 1}],
    ),
    "what is left of a chunk goes to the next prompt": (
        {"max_batch_tokens": 4, "prefill_tokens": 4},
        {0: [ask("a", 6, 1), ask("b", 3, 1)]},
        [{"a": 4}, {"a": 2, "b": 2}, {"b": 1}],
    ),
    "prompts have a batch for themselves while nobody decodes, then a part of it": (
        {"max_batch_tokens": 8, "prefill_tokens": 2},
        {0: [ask("a", 5, 4)], 1: [ask("b", 5, 1)]},
        [{"a": 5}, {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 1}],
    ),
    "the more urgent goes first, then the earlier": (
        {"max_sequences": 1},
        {0: [ask("a", 2, 1, priority=1), ask("b", 2, 1, arrival_s=0.2), ask("c", 2, 1, arrival_s=0.1), ask("d", 2, 1, priority=-1)]},
        [{"d": 2}, {"c": 2}, {"b": 2}, {"a": 2}],
    ),
    "who has waited longer than the patience of others is not overtaken": (
        {"max_sequences": 1, "patience_s": 2.0},
        {0: [ask("a", 2, 1, priority=1), ask("b", 2, 1, arrival_s=1.9), ask("c", 2, 1, arrival_s=2.1)]},
        [{"b": 2}, {"a": 2}, {"c": 2}],
    ),
    "the head of the queue is not passed over when memory is short": (
        {"num_blocks": 5, "max_context": 20, "max_batch_tokens": 32, "prefill_tokens": 32},
        {0: [ask("a", 8, 3), ask("b", 12, 1), ask("c", 2, 1)]},
        [{"a": 8}, {"a": 1}, {"a": 1}, {"b": 12, "c": 2}],
    ),
    "the youngest makes room and comes back with what it has": (
        {"num_blocks": 4, "max_context": 16, "prefix_cache": False},
        {0: [ask("a", 3, 7), ask("b", 3, 7, arrival_s=1.0)]},
        [{"a": 3, "b": 3}, *[{"a": 1, "b": 1}] * 5, {"a": 1}, {"b": 8}, {"b": 1}],
    ),
    "with fewer tokens than sequences they take turns": (
        {"max_batch_tokens": 2},
        {0: [ask("a", 1, 3), ask("b", 1, 3)], 1: [ask("c", 1, 2)]},
        [{"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"c": 1}, {"c": 1}],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_steps_are_those_of_the_table(name):
    changes, arrivals, expected = TABLES[name]
    scheduler = Scheduler(limits(**changes))
    assert batches(scheduler, arrivals) == expected
    assert scheduler.kv.pool.usage == 0


def test_the_sequence_of_the_worst_rank_is_preempted():
    scheduler = Scheduler(limits(num_blocks=6, max_context=24, max_batch_tokens=32, prefill_tokens=32, prefix_cache=False))
    requests = [ask("a", 4, 9, priority=2), ask("b", 4, 9), ask("c", 4, 9, priority=1)]
    again = [step for step in batches(scheduler, {0: requests})[1:] if max(step.values()) > 1]
    assert again == [{"a": 9}]
    assert scheduler.stats.num_preemptions == 1


def flight(scheduler, requests=()):
    """As many batches as may be in flight."""
    for request in requests:
        scheduler.add(request)
    out = []
    while (batch := scheduler.schedule(0.0)) is not None:
        out.append(batch)
    return out


def back(scheduler, batch, token=1):
    return scheduler.update(batch, [Sampled((token,)) for _ in batch.sampled])


def test_work_is_spread_evenly_over_the_batches_in_flight():
    scheduler = Scheduler(limits(batches_in_flight=2, min_chunk_tokens=1, max_batch_tokens=64, prefill_tokens=64))
    first, second = flight(scheduler, [ask(name, 4, 9) for name in "abcd"])
    assert (first.scheduled, second.scheduled) == ({"a": 4, "b": 4}, {"c": 4, "d": 4})
    for batch in (first, second):
        back(scheduler, batch)
    for _ in range(4):
        batches_of = [set(b.scheduled) for b in flight(scheduler)]
        assert batches_of == [{"a", "b"}, {"c", "d"}]
        for batch in tuple(scheduler._in_flight):
            back(scheduler, batch)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages():
    scheduler = Scheduler(limits(batches_in_flight=3, min_chunk_tokens=2, max_batch_tokens=64, prefill_tokens=64))
    assert [b.scheduled for b in flight(scheduler, [ask("a", 9)])] == [{"a": 3}] * 3


def test_all_in_one_batch_are_spread_when_it_is_back():
    scheduler = Scheduler(limits(batches_in_flight=2, max_batch_tokens=64, prefill_tokens=64))
    (batch,) = flight(scheduler, [ask(name, 4, 9) for name in "abcde"])
    back(scheduler, batch)
    assert [len(b.sequences) for b in flight(scheduler)] == [3, 2]


def test_blocks_of_who_leaves_in_flight_return_with_the_batch():
    scheduler = Scheduler(limits())
    (batch,) = flight(scheduler, [ask("a", 4), ask("b", 4)])
    assert scheduler.finish("a", FinishReason.ABORT)
    assert not scheduler.finish("a", FinishReason.ABORT)
    assert scheduler.kv.pool.num_free == 62
    (output,) = back(scheduler, batch)
    assert (output.id, scheduler.kv.pool.num_free) == ("b", 63)
    assert scheduler.finish("b", FinishReason.ABORT)
    assert (scheduler.kv.pool.num_free, scheduler.has_work) == (64, False)


def test_deadlines_end_those_that_wait_and_those_that_run():
    scheduler = Scheduler(limits(max_sequences=1))
    (batch,) = flight(scheduler, [ask("a", 4, 9, deadline_s=2.0), ask("b", 4, deadline_s=1.0), ask("c", 4)])
    back(scheduler, batch)
    assert [(o.id, o.finish, o.num_output) for o in scheduler.expire(1.5)] == [("b", FinishReason.DEADLINE, 0)]
    assert [(o.id, o.finish, o.num_output) for o in scheduler.expire(2.0)] == [("a", FinishReason.DEADLINE, 1)]
    assert [b.scheduled for b in flight(scheduler)] == [{"c": 4}]


@pytest.mark.parametrize(
    ("params", "sampled", "tokens", "finish"),
    [
        ({"max_tokens": 3}, [1, 1, 1], [1, 1, 1], FinishReason.LENGTH),
        ({"max_tokens": 3}, [1, 0], [1, 0], FinishReason.STOP),
        ({"max_tokens": 3, "ignore_eos": True}, [1, 0, 1], [1, 0, 1], FinishReason.LENGTH),
        ({"max_tokens": 9, "stop_tokens": frozenset({4})}, [1, 4], [1, 4], FinishReason.STOP),
        ({"max_tokens": 9, "min_tokens": 2}, [0, 0, 0], [0, 0, 0], FinishReason.STOP),
        ({"max_tokens": 90}, [1] * 60, [1] * 60, FinishReason.LENGTH),
    ],
)
def test_a_sequence_ends_as_its_parameters_say(params, sampled, tokens, finish):
    scheduler = Scheduler(limits(), frozenset({0}))
    scheduler.add(ask("a", 4, params=SamplingParams(**params)))
    outputs = []
    for token in sampled:
        outputs += back(scheduler, scheduler.schedule(0.0), token)
    assert [t for o in outputs for t in o.tokens] == tokens
    assert [o.finish for o in outputs] == [None] * (len(tokens) - 1) + [finish]
    assert (outputs[-1].num_output, scheduler.has_work) == (len(tokens), False)


def test_drafts_are_kept_as_far_as_they_are_right():
    scheduler = Scheduler(limits(num_drafts=3))
    scheduler.add(ask("a", (1, 2, 3, 4, 1, 2), 9))
    back(scheduler, scheduler.schedule(0.0), token=3)
    batch = scheduler.schedule(0.0)
    assert (batch.scheduled, batch.drafts, scheduler.arrays(batch).tokens.tolist()) == ({"a": 4}, [[4, 1, 2]], [3, 4, 1, 2])
    (output,) = scheduler.update(batch, [Sampled((4, 7), (-0.1, -0.2))])
    assert (output.tokens, output.logprobs, output.num_output) == ((4, 7), (-0.1, -0.2), 3)
    assert (scheduler.stats.num_drafted_tokens, scheduler.stats.num_accepted_tokens) == (3, 1)
    (sequence,) = scheduler.schedule(0.0).sequences
    assert (sequence.computed, sequence.tokens) == (9, [1, 2, 3, 4, 1, 2, 3, 4, 7])


@pytest.mark.parametrize(("longest", "drafts"), [(1, [7]), (2, [8]), (3, [9]), (4, [9])])
def test_as_many_last_tokens_are_looked_up_as_the_limits_say(longest, drafts):
    """The text ends with 1 2 3: behind 1 2 3 stood 9, behind 4 2 3, later, 8, and behind 5 3, last of all, 7."""
    scheduler = Scheduler(limits(num_drafts=1, longest_match=longest, max_batch_tokens=16, prefill_tokens=16))
    scheduler.add(ask("a", (1, 2, 3, 9, 4, 2, 3, 8, 5, 3, 7, 1, 2), 9))
    back(scheduler, scheduler.schedule(0.0), token=3)
    assert scheduler.schedule(0.0).drafts == [drafts]


def test_what_is_beyond_the_last_token_is_dropped_with_its_logprobs():
    scheduler = Scheduler(limits(num_drafts=3), frozenset({0}))
    scheduler.add(ask("a", (1, 0, 3, 4, 1), 9))
    back(scheduler, scheduler.schedule(0.0), token=0)
    scheduler = Scheduler(limits(num_drafts=3), frozenset({0}))
    scheduler.add(ask("a", (1, 2, 0, 4, 1), 9))
    back(scheduler, scheduler.schedule(0.0), token=2)
    (output,) = scheduler.update(scheduler.schedule(0.0), [Sampled((0, 4, 1), (-1, -2, -3))])
    assert (output.tokens, output.logprobs, output.finish) == ((0,), (-1,), FinishReason.STOP)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask("b", 64), "prompt: 64 tokens, but the context holds 64, of which at least one is generated; shorten it"),
        (ask("a", 3), "id: a is being served already; give each request an id of its own"),
        (ask("b", 3, 1, generated=(1,)), "max_tokens: 1 tokens are there already, and max_tokens is 1; raise it"),
        (ask("b", 3, fork_of="a"), "fork_of: a has another prompt; leave it out"),
    ],
)
def test_what_can_never_be_served_is_refused(request_, message):
    scheduler = Scheduler(limits())
    scheduler.add(ask("a", 4))
    with pytest.raises(RequestError) as error:
        scheduler.add(request_)
    assert (str(error.value), error.value.field) == (message, message.partition(":")[0])


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(RayplaneError, match="max_context: 300 tokens, but 64 blocks of 4 tokens hold 256"):
        limits(max_context=300)
    with pytest.raises(RayplaneError, match="batches_in_flight: 0 is too small; give at least 1"):
        limits(batches_in_flight=0)


def test_a_text_that_began_elsewhere_goes_on_as_it_would_have():
    prompt = (3, 1, 4, 1, 5)
    whole = continuation(prompt, 8)
    request = Request("a", prompt, SamplingParams(max_tokens=8), generated=tuple(whole[:3]))
    assert serve(Scheduler(limits()), [request], FakeRanks(limits()))["a"] == whole[3:]
