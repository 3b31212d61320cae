"""The router counts work in tokens and gives each request to the replica that then has the least."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayplane.api.prefix_index import PrefixIndex, chain
from rayplane.api.router import Ask, Capacity, Router

CAPACITY = Capacity(block=4, kv_tokens=10_000, max_sequences=8)
NUMBERS = iter(range(10**9))


def router(*names: str, **options) -> Router:
    made = Router(**options)
    for name in names:
        made.join(name, CAPACITY)
    return made


def prompt(length: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def send(r: Router, ask: Ask) -> tuple[str, int]:
    name, number = r.choose(ask), next(NUMBERS)
    r.start(name, number, ask)
    return name, number


def test_there_is_no_choice_without_replicas():
    assert router().choose(Ask(prompt(4), 1)) is None


def test_equal_replicas_are_taken_in_turns():
    r = router("a", "b", "c")
    assert Counter(r.choose(Ask(prompt(4), 1)) for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_work_is_prompt_and_answer_until_they_are_there():
    r = router("a")
    _, number = send(r, Ask(prompt(40), 10))
    assert r.work("a") == 50
    r.progress("a", number, 1)
    assert r.work("a") == 9
    r.progress("a", number, 3)
    assert r.work("a") == 6
    r.finish("a", number, prompt(44), "", 4)
    assert r.work("a") == 0


def test_the_next_request_goes_where_less_is_to_do():
    r = router("a", "b")
    first, _ = send(r, Ask(prompt(100), 10))
    second, _ = send(r, Ask(prompt(20, 500), 10))
    assert first != second
    assert send(r, Ask(prompt(20, 900), 10))[0] == second


@pytest.mark.parametrize(("ahead", "follows"), [(30, True), (59, True), (61, False)])
def test_a_cached_prefix_is_worth_its_own_length(ahead, follows):
    r = router("a", "b")
    r.choose(Ask(prompt(4), 1))  # turns
    home, number = send(r, Ask(prompt(60), 1))
    r.progress(home, number, 1)
    r.finish(home, number, prompt(61), "", 1)
    r.start(home, next(NUMBERS), Ask(prompt(ahead - 1, 5000), 1))
    assert (r.choose(Ask(prompt(60), 1)) == home) is follows


def test_a_salt_keeps_prefixes_apart():
    r = router("a", "b")
    home, _ = send(r, Ask(prompt(60), 1, salt="mine"))
    assert r.choose(Ask(prompt(60), 1, salt="yours")) != home


def test_a_session_stays_while_that_costs_little():
    r = router("a", "b", session_margin=100)
    home, _ = send(r, Ask(prompt(50), 10, session="s"))
    assert [r.choose(Ask(prompt(8, 700), 10, session="s")) for _ in range(4)] == [home] * 4
    r.start(home, next(NUMBERS), Ask(prompt(80, 900), 10))
    assert r.choose(Ask(prompt(8, 700), 10, session="s")) != home


def test_a_popular_prefix_makes_no_hot_spot():
    r = router("a", "b", "c", "d")
    shared = prompt(400)
    held: Counter[str] = Counter()
    for i in range(64):
        name, _ = send(r, Ask((*shared, *prompt(20, 1000 + 50 * i)), 64))
        held[name] += 1
    assert max(held.values()) <= 64 / 4 * 1.5


def test_one_that_closes_gets_nothing_new_and_keeps_what_it_has():
    r = router("a", "b")
    home, number = send(r, Ask(prompt(8), 4))
    r.close(home)
    assert {r.choose(Ask(prompt(8), 4, session="s")) for _ in range(5)} == {"a", "b"} - {home}
    r.progress(home, number, 1)
    r.finish(home, number, prompt(9), "", 1)


def test_room_is_what_can_run_less_what_is_there():
    r = router("a", "b")
    assert r.room() == 16
    for _ in range(20):
        send(r, Ask(prompt(8), 4))
    assert r.room() == -4


def test_a_full_cache_leaves_no_room():
    r = Router()
    r.join("a", Capacity(4, kv_tokens=100, max_sequences=64))
    for _ in range(4):
        send(r, Ask(prompt(50), 4))
    assert r.room() == 2 - 4


def test_chained_hashes_stand_for_all_that_is_before():
    one, other = chain(prompt(12), 4), chain((9, *prompt(12)[1:]), 4)
    assert len(one) == 3
    assert not set(one) & set(other)
    assert chain(prompt(11), 4) == one[:2]


def test_the_index_forgets_the_oldest_and_of_a_text_its_end():
    index = PrefixIndex(4)
    index.add((1, 2, 3))
    index.add((7, 8))
    assert len(index) == 4
    assert index.matched((1, 2, 3)) == 2
    assert index.matched((7, 8)) == 2


events = st.lists(
    st.tuples(st.sampled_from(["send", "step", "end", "lose", "join", "close"]), st.integers(0, 10**6)), min_size=1, max_size=150
)


@given(events)
@settings(max_examples=80, deadline=None)
def test_counts_are_exact_whatever_happens(history):
    r, there, flying = router("a", "b", "c"), {"a", "b", "c"}, {}
    open_ = set(there)
    for event, value in history:
        if event == "send":
            ask = Ask(prompt(1 + value % 90, value % 5 * 100), 1 + value % 30, session=str(value % 7))
            name = r.choose(ask)
            assert (name in open_) if open_ else name is None
            if name:
                number = next(NUMBERS)
                r.start(name, number, ask)
                flying[number] = (name, ask)
        elif event in ("step", "end") and flying:
            number = sorted(flying)[value % len(flying)]
            name, ask = flying[number]
            r.progress(name, number, 1)
            if event == "end":
                r.finish(name, number, ask.prompt, "", 1 if value % 2 else None)
                del flying[number]
        elif event in ("lose", "close") and there:
            name = sorted(there)[value % len(there)]
            open_.discard(name)
            if event == "close":
                r.close(name)
                continue
            there.discard(name)
            r.leave(name)
            flying = {k: v for k, v in flying.items() if v[0] != name}
        elif event == "join" and len(there) < 3:
            name = sorted({"a", "b", "c"} - there)[0]
            there.add(name)
            open_.add(name)
            r.join(name, CAPACITY)
        for name in there:
            assert r.running(name) == sum(home == name for home, _ in flying.values())
            assert r.work(name) >= -1e-6
    for number, (name, ask) in flying.items():
        r.finish(name, number, ask.prompt, "", None)
    assert all(r.work(name) == 0 and r.running(name) == 0 for name in there)


@given(st.integers(0, 10**6), st.integers(2, 5))
@settings(max_examples=15, deadline=None)
def test_whoever_gets_a_request_had_the_least_to_do(seed, count):
    rng, names = random.Random(seed), [f"r{i}" for i in range(count)]
    r, flying = router(*names), []
    for _ in range(100):
        before = {name: r.work(name) for name in names}
        ask = Ask(tuple(rng.randrange(10**6) for _ in range(rng.randrange(1, 60))), rng.randrange(1, 60))
        name, number = send(r, ask)
        assert before[name] == min(before.values())
        flying.append((name, number, ask))
        for name, number, _ in rng.sample(flying, len(flying) // 3):
            r.progress(name, number, 5)
        if rng.random() < 0.7:
            name, number, ask = flying.pop(rng.randrange(len(flying)))
            r.finish(name, number, ask.prompt, "", 30)
