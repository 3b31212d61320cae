"""Continuous batching, played: nothing is lost, the cache never runs over, and times are what closed forms say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.plan.machine.catalog import device
from rayplane.plan.machine.network import Network
from rayplane.plan.serving.batching import Batching, Request
from rayplane.plan.serving.engine import Engine
from rayplane.plan.serving.kv import Room, room
from rayplane.plan.serving.load import Load, Played, mean, percentile, play, saturating
from rayplane.plan.serving.serve import Replica
from rayplane.plan.serving.served import Cut, Formats, known

BARE = Engine(step_s=0.0, sequence_s=0.0, token_s=0.0, request_s=0.0, prompt_token_s=0.0, launch_us=0.0)
"""An engine of which nothing but the model takes time."""
WHOLE = Cut()


def replica(engine: Engine = BARE, cut: Cut = WHOLE, name: str = "llama-3.1-8b") -> Replica:
    h100 = device("h100-sxm")
    return Replica(known(name), cut, Network(h100.links, h100), 8, engine)


def holding(tokens: int) -> Room:
    return Room(0, 0, 1.0, 1, tokens)


def played(load: Load, engine: Engine = BARE, tokens: int = 10**7, cut: Cut = WHOLE) -> Played:
    return play(replica(engine, cut), holding(tokens), load)


def test_one_request_takes_its_prompt_and_then_a_step_for_each_token() -> None:
    of, lone = replica(), played(Load(1000, 11, concurrency=1, requests=1))
    assert lone.ttft_s == (pytest.approx(of.counts(0, 1000, 1).total + of.prompt_s(0, 1000)),)
    steps = [of.counts(1, 0, 0).total + of.cache_s(1, 1000 + i) for i in range(10)]
    assert lone.tpot_s == (pytest.approx(sum(steps) / 10),)
    assert lone.tokens_s == pytest.approx(11 / (lone.ttft_s[0] + sum(steps)))


def test_steps_taken_together_last_as_long_as_one_by_one() -> None:
    together, apart = (Batching(replica(), 10**6, lambda when: None) for _ in range(2))
    for batching in (together, apart):
        for prompt in (100, 700, 300):
            batching.come(Request(0.0, prompt, 50))
    late = Request(1e-9, 1, 1)  # what comes at every moment cuts each stretch of steps to one
    while len(together.ended) < 3:
        together.step()
    while len(apart.ended) < 3:
        apart.coming.append((apart.now + 1e-12, 0, late))
        apart.step()
        apart.coming.clear()
        apart.waiting.clear()
    assert [r.last for r in together.ended] == pytest.approx([r.last for r in apart.ended], rel=1e-6)


def test_a_chunked_prompt_delays_those_that_decode_by_a_chunk_at_a_time() -> None:
    small, large = (played(Load(8000, 100, concurrency=4), replace(BARE, chunk=chunk)) for chunk in (512, 8192))
    assert percentile(small.ttft_s, 0.5) > percentile(large.ttft_s, 0.5)
    worst = max(large.tpot_s) / min(large.tpot_s)
    assert worst > max(small.tpot_s) / min(small.tpot_s)


def test_prompts_first_keeps_a_wave_together() -> None:
    engine, n = replace(BARE, prefill_first=True, chunk=1024), 8
    wave = played(Load(1024, 64, concurrency=n), engine)
    one = replica(engine).counts(0, 1024, 1).total + replica(engine).prompt_s(0, 1024)
    assert mean(wave.ttft_s) == pytest.approx((n + 1) / 2 * one)


def test_in_a_closed_load_as_many_are_on_their_way_as_it_says() -> None:
    n, load = 16, Load(512, 128, concurrency=16, requests=800, spread=0.1)
    of = played(load)
    stay = mean(of.ttft_s) + 127 * mean(of.tpot_s)
    assert of.tokens_s / 128 * stay == pytest.approx(n, rel=0.05)


def test_rare_requests_meet_an_idle_replica() -> None:
    lone = played(Load(1000, 100, concurrency=1, requests=1))
    rare = played(Load(1000, 100, rate=0.01, requests=50))
    assert percentile(rare.ttft_s, 0.9) == pytest.approx(lone.ttft_s[0], rel=0.01)


def test_more_requests_a_second_wait_longer() -> None:
    waits = [percentile(played(Load(1000, 100, rate=rate, requests=300, warm=0.3)).ttft_s, 0.95) for rate in (2, 10, 30)]
    assert waits == sorted(waits)
    assert waits[2] > 2 * waits[0]


def test_one_process_hands_out_no_more_tokens_than_it_can() -> None:
    load = Load(100, 200, concurrency=256, requests=1024)
    free, bound = (played(load, replace(BARE, token_s=token_s)) for token_s in (0.0, 200e-6))
    assert free.tokens_s > 1 / 200e-6 > bound.tokens_s > 0.9 / 200e-6
    assert mean(bound.ttft_s) > 1.5 * mean(free.ttft_s)


def test_host_beside_the_model_hides_and_before_it_adds() -> None:
    load = Load(100, 50, concurrency=4)
    slow = replace(BARE, step_s=2e-3)
    bare, beside, before = (played(load, engine) for engine in (BARE, slow, replace(slow, overlapped=False)))
    assert beside.tpot_s == bare.tpot_s
    assert mean(before.tpot_s) == pytest.approx(mean(bare.tpot_s) + 2e-3, rel=0.02)


def test_a_full_cache_puts_the_last_come_off_and_all_still_end() -> None:
    load = Load(100, 400, concurrency=20, requests=60)
    tight = played(load, tokens=3000)
    assert tight.put_off > 0
    assert len(tight.ttft_s) == 60
    assert mean(tight.tpot_s) > mean(played(load).tpot_s)


def test_with_room_for_the_whole_output_nobody_is_put_off() -> None:
    load = Load(100, 400, concurrency=20, requests=60)
    assert played(load, replace(BARE, reserve=1.0), tokens=3000).put_off == 0


def test_saturated_throughput_grows_with_the_cache_and_then_no_more() -> None:
    of = [played(Load(500, 500, concurrency=c, requests=4 * c)).tokens_s for c in (4, 32, 256, 1024)]
    assert of == sorted(of)
    assert of[1] / of[0] > 4
    assert of[3] / of[2] < 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60), st.floats(0, 0.5)), min_size=1, max_size=40),
    st.integers(400, 3000),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.booleans(),
)
def test_every_token_comes_once_and_the_cache_never_runs_over(
    requests: list[tuple[int, int, float]], capacity: int, reserve: float, prefill_first: bool
) -> None:
    engine = replace(BARE, reserve=reserve, prefill_first=prefill_first, chunk=128)
    batching = Batching(replica(engine), capacity, lambda when: None)
    for prompt, output, when in requests:
        batching.come(Request(when, prompt, output))
    for _ in range(100_000):
        if len(batching.ended) == len(requests):
            break
        before = batching.now
        batching.step()
        assert batching.now >= before
        assert batching.context <= capacity + len(batching.running)
    assert len(batching.ended) == len(requests)
    assert batching.tokens == sum(output for _, output, _ in requests)
    assert sorted(r.produced for r in batching.ended) == sorted(output for _, output, _ in requests)
    assert (batching.context, batching.remaining, round(batching.held, 6)) == (0, 0, 0.0)
    assert all(r.last >= r.first >= r.arrival for r in batching.ended)


def test_the_same_load_gives_the_same_times() -> None:
    load = Load(300, 100, rate=20, requests=200, spread=0.2)
    assert played(load) == played(load)


@pytest.mark.parametrize(
    ("name", "kind", "tp", "numbers", "prompt", "output", "tokens_s"),
    [
        ("llama-3.3-70b", "h200", 1, "fp8", 1000, 1000, 2909),
        ("llama-3.3-70b", "h100-sxm", 2, "fp8", 2048, 128, 762),
        ("llama-3.3-70b", "b200", 1, "fp4", 128, 128, 11147),
        ("llama-3.1-405b", "h200", 8, "fp8", 5000, 500, 650),
        ("llama-3.1-8b", "h200", 1, "fp8", 128, 2048, 26221),
    ],
)
def test_published_throughput_of_tensorrt_llm_is_met_within_a_seventh(
    name: str, kind: str, tp: int, numbers: str, prompt: int, output: int, tokens_s: float
) -> None:
    engine = replace(BARE, reserve=1.0, max_sequences=2048, step_s=1.2e-3, sequence_s=35e-6, launch_us=600.0)
    of = device(kind)
    served = replace(known(name), formats=Formats(numbers, numbers, "fp8"))
    r = Replica(served, Cut(tp=tp), Network(of.links, of), 8, engine)
    free = room(r, of.memory_bytes * 2**30 // 10**9)
    at_once = saturating(r, free, prompt, output)
    assert play(r, free, Load(prompt, output, at_once, requests=3 * at_once, spread=0.05)).tokens_s == pytest.approx(tokens_s, rel=0.15)
