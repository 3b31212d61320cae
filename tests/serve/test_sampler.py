"""Tokens are drawn as their probabilities say, and depend on nothing but the request."""

from collections import Counter

import numpy as np
import pytest
import torch

from rayplane.serve import draw as draw_module
from rayplane.serve.draw import draw
from rayplane.serve.notes import Admission
from rayplane.serve.outputs import Sampled
from rayplane.serve.randoms import uniforms
from rayplane.serve.sampler import Due, Sampler
from rayplane.serve.sampling import SamplingParams, Structure

VOCAB = 8
LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0])
DRAWN = 20_000


def shares(**params):
    """How often each token is drawn, over many places of one text."""
    p = SamplingParams(**params)
    tokens = draw(LOGITS.expand(DRAWN, VOCAB), [p] * DRAWN, uniforms([7] * DRAWN, range(DRAWN)))
    counts = Counter(tokens)
    return np.array([counts[t] / DRAWN for t in range(VOCAB)])


def sampler(**params):
    made = Sampler(VOCAB, _never)
    made.admit([Admission(1, SamplingParams(**params), (0, 1), (), (0,))])
    return made


def _never(structure):
    raise AssertionError(structure)


def test_uniform_numbers_are_splitmix64():
    """The second and third output of the reference generator for seed 0, which begins at mix(0) = 0."""
    outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert uniforms([0, 0, 0], [0, 1, 2]).tolist() == [(x >> 11) * 2.0**-53 for x in outputs]


def test_uniform_numbers_are_uniform_and_differ_by_seed_and_place():
    u = uniforms(range(-500, 500), [3] * 1000)
    assert abs(u.mean() - 0.5) < 0.03 and abs((u * u).mean() - 1 / 3) < 0.03
    assert len({*u, *uniforms([5] * 1000, range(4, 1004))}) == 2000
    assert uniforms([-1], [0]) == uniforms([2**64 - 1], [0])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_softmax_says(temperature):
    expected = (LOGITS / temperature).softmax(-1).numpy()
    assert np.abs(shares(temperature=temperature) - expected).max() < 4 * np.sqrt(0.25 / DRAWN)


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_k": 1}, [0]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.6}, [0, 1]),
        ({"top_p": 0.75}, [0, 1, 2]),
        ({"top_p": 0.0}, [0]),
        ({"min_p": 0.2}, [0, 1, 2]),
        ({"min_p": 1.0}, [0]),
        ({"top_k": 4, "top_p": 0.75}, [0, 1]),
        ({"top_k": 100}, list(range(VOCAB))),
    ],
    ids=str,
)
def test_only_tokens_that_are_left_are_drawn_and_by_their_shares(params, left):
    expected = torch.full((VOCAB,), -torch.inf)
    expected[left] = LOGITS[left]
    assert np.abs(shares(**params) - expected.softmax(-1).numpy()).max() < 4 * np.sqrt(0.25 / DRAWN)


@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"min_p": 0.01, "top_p": 0.999}, {"top_p": 0.9, "top_k": 700}], ids=str)
def test_a_flat_distribution_needs_more_tokens_than_are_kept_first(params, monkeypatch):
    logits = torch.randn(50, 2000, generator=torch.Generator().manual_seed(0))
    p, u = [SamplingParams(**params)] * 50, uniforms([1] * 50, range(50))
    monkeypatch.setattr(draw_module, "KEPT", 2000)
    whole = draw(logits, p, u)
    for kept in (2, 16, 500):
        monkeypatch.setattr(draw_module, "KEPT", kept)
        assert draw(logits, p, u) == whole
    assert len(set(whole)) > 20


def test_a_row_does_not_depend_on_the_others():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 300, generator=generator)
    params = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=5), SamplingParams(top_p=0.7)] + [
        SamplingParams()
    ] * 2
    u = uniforms([4] * 6, range(6))
    together = draw(logits, params, u)
    assert together == [draw(logits[i : i + 1], params[i : i + 1], u[i : i + 1])[0] for i in range(6)]
    assert together[1] == logits[1].argmax()


def test_never_a_token_of_no_probability():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    for u in (0.0, 0.5, 1 - 2**-53):
        assert draw(logits, [SamplingParams()], np.array([u])) == [1]


def test_the_same_seed_gives_the_same_text_after_a_resumption():
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(0))
    whole = sampler(seed=3)
    text = [whole.sample(logits[i : i + 1], [Due(1)])[0].tokens[0] for i in range(5)]
    resumed = Sampler(VOCAB, _never)
    resumed.admit([Admission(9, SamplingParams(seed=3), (0, 1), tuple(text[:3]), ())])
    assert [resumed.sample(logits[i : i + 1], [Due(9)])[0].tokens[0] for i in (3, 4)] == text[3:]
    assert len(set(text)) > 1


@pytest.mark.parametrize(("right", "kept"), [(0, 1), (1, 2), (2, 3), (3, 4)])
@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}, {"seed": 5, "frequency_penalty": 0.7}], ids=str)
def test_drafts_are_kept_as_far_as_they_are_what_would_have_been_drawn(params, right, kept):
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))
    alone = sampler(**params)
    text = [alone.sample(logits[i : i + 1], [Due(1)])[0].tokens[0] for i in range(4)]
    drafts = [*text[:right], *((t + 1) % VOCAB for t in text[right:3])]
    assert sampler(**params).sample(logits, [Due(1, tuple(drafts))]) == [Sampled(tuple(text[:kept]))]


def test_penalties_follow_their_formulas():
    known = sampler(temperature=0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    state = known._known[1]
    state.went_on(2)
    state.went_on(2)
    logits = LOGITS.clone()
    state.adjust(logits)
    # 0 and 1 are of the prompt, 2 came twice.
    assert logits.tolist() == [1.0, 0.5, 0.25 - 2 * 0.25 - 0.5, *LOGITS[3:].tolist()]


def test_a_bias_moves_a_logit_and_a_minimum_length_forbids_the_end():
    biased = sampler(temperature=0, logit_bias=((7, 100.0),))
    assert biased.sample(LOGITS[None], [Due(1)]) == [Sampled((7,))]
    patient = sampler(temperature=0, min_tokens=2)
    tokens = [patient.sample(LOGITS[None], [Due(1)])[0].tokens[0] for _ in range(3)]
    assert tokens == [1, 1, 0]


def test_logprobs_are_the_models_before_any_change():
    (one,) = sampler(temperature=0, logprobs=2, logit_bias=((7, 100.0),)).sample(LOGITS[None], [Due(1)])
    every = LOGITS.double().log_softmax(-1)
    (entry,) = one.logprobs
    assert (one.tokens, entry.logprob) == ((7,), pytest.approx(every[7].item()))
    assert entry.top == ((0, pytest.approx(every[0].item())), (1, pytest.approx(every[1].item())))


def test_a_grammar_forbids_and_is_told_what_came():
    class Even:
        """Even tokens only."""

        def __init__(self):
            self.told = []

        def forbid(self, logits):
            logits[1::2] = -torch.inf

        def accept(self, token):
            self.told.append(token)

    grammar = Even()
    held = Sampler(VOCAB, lambda structure: grammar)
    held.admit([Admission(1, SamplingParams(seed=1, structure=Structure("regex", "x")), (0,), (4,), ())])
    tokens = [held.sample(LOGITS[None], [Due(1)])[0].tokens[0] for _ in range(50)]
    assert {t % 2 for t in tokens} == {0} and len(set(tokens)) > 2
    assert grammar.told == [4, *tokens]


def test_what_has_ended_is_forgotten():
    known = sampler()
    known.forget([1, 2])
    assert known._known == {}
