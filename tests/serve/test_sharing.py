"""What is computed once is shared: cached prefixes, and the prompt of forks down to its last block."""

import pytest
from fake_model import FakeRanks, batches, continuation, serve

from rayplane.serve.limits import SchedulerLimits
from rayplane.serve.request import FinishReason, Request
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.scheduler import Scheduler

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def limits(**changes):
    small = {"num_blocks": 64, "max_context": 64, "block_size": 4, "max_batch_tokens": 64, "prefill_tokens": 64}
    return SchedulerLimits(**(small | changes))


def ask(name, prompt=PROMPT, out=3, **fields):
    return Request(name, prompt, SamplingParams(max_tokens=out), **fields)


@pytest.mark.parametrize(
    ("second", "computed"),
    [
        (ask("b"), 2),
        (ask("b", PROMPT[:9]), 1),
        (ask("b", PROMPT[:8]), 4),
        (ask("b", PROMPT[:4] + (0,) * 6), 6),
        (ask("b", (0, *PROMPT[1:])), 10),
        (ask("b", salt="adapter"), 10),
    ],
)
def test_a_prompt_is_computed_from_where_the_cached_prefix_ends(second, computed):
    scheduler = Scheduler(limits())
    taken = batches(scheduler, {0: [ask("a")], 5: [second]})
    assert taken[5] == {"b": computed}
    assert scheduler.stats.prefix_hit_tokens == len(second.prompt) - computed


def test_without_prefix_cache_all_is_computed():
    assert batches(Scheduler(limits(prefix_cache=False)), {0: [ask("a")], 5: [ask("b")]})[5] == {"b": 10}


def test_what_is_shared_is_not_computed_in_the_same_step():
    """Within a step nothing says whose keys and values are written first."""
    taken = batches(Scheduler(limits(max_batch_tokens=12, prefill_tokens=12)), {0: [ask("a"), ask("b"), ask("c")]})
    assert taken[:3] == [{"a": 10, "b": 2}, {"a": 1, "b": 8, "c": 2}, {"a": 1, "b": 1, "c": 1}]


def test_the_output_of_one_turn_is_found_by_the_next():
    scheduler = Scheduler(limits())
    text = serve(scheduler, [ask("a", out=7)])["a"]
    assert batches(scheduler, {0: [ask("b", (*PROMPT, *text, 0, 0))]})[0] == {"b": 3}


def test_a_preempted_sequence_finds_what_it_had():
    bounds = {"num_blocks": 7, "max_context": 28}
    steps = {}
    for cache in (True, False):
        scheduler = Scheduler(limits(prefix_cache=cache, **bounds))
        taken = batches(scheduler, {0: [ask("a", PROMPT[:8], 9), ask("b", PROMPT[1:9], 9)]})
        assert scheduler.stats.num_preemptions == 1
        steps[cache] = [step["b"] for step in taken[1:] if step.get("b", 1) > 1]
    assert steps[True] < steps[False]


@pytest.mark.parametrize(("length", "copies"), [(10, 1), (9, 0), (8, 1), (1, 0), (2, 1)])
@pytest.mark.parametrize("cache", [True, False])
def test_a_fork_computes_the_last_token_of_its_prompt_and_copies_the_block_it_is_in(cache, length, copies):
    scheduler = Scheduler(limits(prefix_cache=cache))
    ranks, prompt = FakeRanks(scheduler.limits), PROMPT[:length]
    for request in (ask("a", prompt, 6), ask("b", prompt, 6, fork_of="a"), ask("c", prompt, 6, fork_of="a")):
        scheduler.add(request)
    texts = {name: [] for name in "abc"}
    taken, copied = [], []
    while (batch := scheduler.schedule(0.0)) is not None:
        taken.append(batch.scheduled)
        copied.append(len(batch.copies))
        ranks.submit(scheduler.arrays(batch))
        for output in scheduler.update(batch, ranks.result()):
            texts[output.id] += output.tokens
    assert taken[:2] == [{"a": length}, {"a": 1, "b": 1, "c": 1}]
    assert copied[:3] == [0, 2 * copies, 0]
    assert all(text == continuation(prompt, 6) for text in texts.values())
    assert scheduler.kv.pool.usage == 0


def test_forks_of_one_that_leaves_are_served_alone():
    scheduler = Scheduler(limits(prefix_cache=False))
    scheduler.add(ask("a"))
    scheduler.add(ask("b", fork_of="a"))
    assert scheduler.stats.num_waiting == 2
    scheduler.finish("a", FinishReason.ABORT)
    assert scheduler.schedule(0.0).scheduled == {"b": 10}


def test_a_fork_that_leaves_while_it_waits_is_forgotten():
    scheduler = Scheduler(limits())
    scheduler.add(ask("a"))
    scheduler.add(ask("b", fork_of="a"))
    assert scheduler.finish("b", FinishReason.ABORT)
    assert (scheduler.stats.num_waiting, batches(scheduler, {0: []})) == (1, [{"a": 10}, {"a": 1}, {"a": 1}])


def test_a_fork_does_not_share_a_prompt_that_is_computed_again():
    """Its parent is preempted while it waits; both come back in one step."""
    scheduler = Scheduler(limits(num_blocks=7, max_context=28, max_sequences=2, prefix_cache=False))
    prompt = PROMPT[:6]
    asked = [ask("b", (0, 0, 0), 14), ask("a", prompt, 16, priority=1), ask("f", prompt, 3, priority=1, fork_of="a")]
    texts = serve(scheduler, asked)
    assert scheduler.stats.num_preemptions == 1
    assert texts == {r.id: continuation(r.prompt, r.params.max_tokens) for r in asked}
