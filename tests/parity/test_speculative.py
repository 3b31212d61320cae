"""Guesses change no answer: with and without them, whatever is asked for, tokens and logprobs are the same."""

import pytest
import torch
from serving_job import LETTERS, save_model

from rayplane.serve.sampling import Grammar, SamplingParams, Structure
from rayplane.serve.wire import Submit
from rayplane.spec.layout import Layout
from rayplane.spec.model_section import ModelSection
from tests.parity.replica import Replica

TOKENS, END = 60, 10
PROMPTS = [tuple(b"abcabcabc-abc" * (i + 1)) for i in range(4)] + [tuple(range(1, 40))]
ASKED = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.4, "seed": 5},
    "narrow": {"temperature": 0.8, "seed": 6, "top_k": 3, "top_p": 0.9, "min_p": 0.05},
    "penalised": {"temperature": 0.5, "seed": 7, "repetition_penalty": 1.02, "presence_penalty": 0.1, "frequency_penalty": 0.02},
    "biased": {"temperature": 0, "logit_bias": ((97, 30.0), (98, 29.5))},
    "patient": {"temperature": 0.4, "seed": 8, "min_tokens": 30, "stop_tokens": frozenset(range(0, LETTERS, 5))},
    "ended": {"temperature": 0.4, "seed": 9, "stop_tokens": frozenset(range(0, LETTERS, 9))},
    "structured": {"temperature": 0.6, "seed": 10, "structure": Structure(Grammar.REGEX, "(ab[cd])*")},
}


class Letters:
    """The regular expression above: a, then b, then c or d, and again."""

    def __init__(self, structure: Structure):
        assert structure.source == "(ab[cd])*"
        self._place = 0

    def forbid(self, logits: torch.Tensor) -> None:
        left = [*b"cd"] if self._place == 2 else [b"ab"[self._place]]
        kept = logits[left].clone()
        logits.fill_(-torch.inf)
        logits[left] = kept

    def accept(self, token: int) -> None:
        assert token in (b"a", b"b", b"cd")[self._place], "only what becomes part of the output is told"
        self._place = (self._place + 1) % 3


@pytest.fixture(scope="module", params=[Layout(), Layout(pp=2)], ids=str)
def replica(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(folder)
    made = Replica(request.param, "fp32", ModelSection(path=str(folder)), Letters)
    yield made
    made.close()


@pytest.mark.parametrize("asked", ASKED)
def test_right_and_wrong_guesses_change_nothing(replica, asked):
    params = SamplingParams(max_tokens=TOKENS, logprobs=3, ignore_eos="stop_tokens" not in ASKED[asked], **ASKED[asked])
    submits = [Submit(i, prompt, params) for i, prompt in enumerate(PROMPTS)]
    plain, guessing = replica.engine(), replica.engine(num_drafts=4)
    expected, given = replica.answers(plain, submits), replica.answers(guessing, submits)
    for i in range(len(PROMPTS)):
        assert given[i].tokens == expected[i].tokens
        for one, other in zip(given[i].logprobs, expected[i].logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
    before, after = plain.pulse(0.0), guessing.pulse(0.0)
    assert 0 < after.accepted <= after.drafted and before.drafted == before.accepted == 0
