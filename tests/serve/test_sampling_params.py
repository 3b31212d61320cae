"""A request that makes no sense is refused with the field, its value and what to give."""

import math

import pytest

from rayplane.errors import RequestError
from rayplane.serve.request import Request
from rayplane.serve.sampling import SamplingParams


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature: -0.1 is out of range; give 0 or more"),
        ({"temperature": math.nan}, "temperature: nan is out of range; give 0 or more"),
        ({"temperature": math.inf}, "temperature: inf is out of range; give 0 or more"),
        ({"top_p": 1.5}, "top_p: 1.5 is out of range; give 0 to 1"),
        ({"min_p": -1}, "min_p: -1 is out of range; give 0 to 1"),
        ({"top_k": -1}, "top_k: -1 is out of range; give 0 or more"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: 0 is out of range; give more than 0, 1 for none"),
        ({"frequency_penalty": math.inf}, "frequency_penalty: inf is out of range; give a finite number"),
        ({"seed": 2**63}, f"seed: {2**63} is out of range; give {-(2**63)} to {2**63 - 1}"),
        ({"max_tokens": 0}, "max_tokens: 0 is out of range; give 1 or more"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens: 5 is above max_tokens, 4; lower it"),
        ({"stop": ("a", "")}, "stop: a stop string is empty; leave it out"),
        ({"logit_bias": ((-1, 2.0),)}, "logit_bias: token -1 with bias 2.0 makes no sense; give a token id and a finite number"),
        ({"logprobs": -1}, "logprobs: -1 is out of range; give 0 or more"),
    ],
)
def test_senseless_parameters_are_refused(fields, message):
    with pytest.raises(RequestError) as error:
        SamplingParams(**fields)
    assert (str(error.value), error.value.field) == (message, message.partition(":")[0])


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": -5}, {"top_p": 0}, {"logprobs": 0}, {"frequency_penalty": -2.0}])
def test_borders_are_allowed(fields):
    assert SamplingParams(**fields)


def test_a_prompt_has_a_token():
    with pytest.raises(RequestError, match="prompt: it is empty; give at least one token"):
        Request("a", ())
