"""What a request may say, what it means to the engine, and how a mistake in it is named."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from rayplane.api.errors import ApiError, malformed
from rayplane.api.orders import Orders
from rayplane.api.protocol.requests import ChatRequest, CompletionRequest
from rayplane.api.protocol.sampling import Bounds
from rayplane.api.protocol.section import UNSUPPORTED
from rayplane.api.tokenizer import open_tokenizer
from rayplane.serve.sampling import Grammar, Structure

TOKENIZER = open_tokenizer("bytes")
ORDERS = Orders(TOKENIZER, 100, Bounds(256, TOKENIZER.end_tokens))


def parsed(kind, fields):
    try:
        return kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise malformed(error, UNSUPPORTED) from None


def wanted(**fields):
    """The continuations of a completion request."""
    body = parsed(CompletionRequest, {"model": "m", "prompt": "hi", **fields})
    return asyncio.run(ORDERS.completion(body))[0]


def params(**fields):
    return wanted(**fields)[0].params


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0, "logprobs": None, "stop_tokens": {0}}),
        ({"max_tokens": 5, "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1}, {"max_tokens": 5, "top_k": 7, "min_p": 0.1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.2}, {"presence_penalty": -2, "frequency_penalty": 2}),
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -(2**63)}, {"seed": -(2**63)}),
        ({"logit_bias": {"65": -100, "66": 3.5}}, {"logit_bias": ((65, -100), (66, 3.5))}),
        ({"logprobs": 3}, {"logprobs": 3}),
        ({"ignore_eos": True}, {"ignore_eos": True, "stop_tokens": set()}),
        ({"stop_token_ids": [5], "min_tokens": 2}, {"stop_tokens": {0, 5}, "min_tokens": 2}),
        ({"stop": "x"}, {"stop": ()}),
        ({"temperature": None, "n": None, "stop": None, "seed": None, "logit_bias": None}, {"temperature": 1.0}),
    ],
)
def test_fields_reach_the_engine(fields, expected):
    found = params(**fields)
    assert {name: getattr(found, name) for name in expected} == expected


STRUCTURES = {
    "response_format": [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Structure(Grammar.JSON_OBJECT)),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}, "strict": True}},
            Structure(Grammar.JSON_SCHEMA, '{"type": "object"}'),
        ),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, Structure(Grammar.JSON_OBJECT)),
    ],
    "structured_outputs": [
        ({"regex": "a+"}, Structure(Grammar.REGEX, "a+")),
        ({"json": {"type": "string"}}, Structure(Grammar.JSON_SCHEMA, '{"type": "string"}')),
        ({"grammar": "root ::= 'a'"}, Structure(Grammar.EBNF, "root ::= 'a'")),
        ({"choice": ["yes", "no?"]}, Structure(Grammar.REGEX, r"(yes)|(no\?)")),
        ({"json_object": True}, Structure(Grammar.JSON_OBJECT)),
    ],
    "guided_regex": [("a|b", Structure(Grammar.REGEX, "a|b"))],
    "guided_json": [('{"type": "null"}', Structure(Grammar.JSON_SCHEMA, '{"type": "null"}'))],
    "guided_choice": [(["a"], Structure(Grammar.REGEX, "(a)"))],
    "guided_grammar": [("root ::= 'a'", Structure(Grammar.EBNF, "root ::= 'a'"))],
}


@pytest.mark.parametrize(
    ("field", "value", "structure"), [(field, value, s) for field, cases in STRUCTURES.items() for value, s in cases]
)
def test_forms_of_structured_output(field, value, structure):
    assert params(**{field: value}).structure == structure


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"temperature": float("nan")}, "temperature", "finite number"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 10**30}, "n", "less than or equal to 128"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 1.5}, "max_tokens", "valid integer"),
        ({"top_k": 10**40}, "top_k", "less than or equal to"),
        ({"seed": 2**63}, "seed", "less than 9223372036854775808"),
        ({"stop": ""}, "stop", "at least 1 character"),
        ({"logit_bias": {"256": 1}}, "logit_bias", "'256' is no token; ids are from 0 to 255"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "is no token"),
        ({"logit_bias": {"٣": 1}}, "logit_bias", "is no token"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "less than or equal to 100"),
        ({"stop_token_ids": [256]}, "stop_token_ids", "ids are below 256"),
        ({"min_tokens": 17}, "min_tokens", "above max_tokens, 16"),
        ({"best_of": 2}, "best_of", "is not supported by this server"),
        ({"tools": []}, "tools", "is not supported by this server"),
        ({"temprature": 1}, "temprature", "is no field of this request"),
        ({"stream_options": {}}, "stream_options", "for streams only"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "is no field"),
        ({"prompt": ""}, "prompt", "it has no tokens"),
        ({"prompt": []}, "prompt", ""),
        ({"prompt": [[]]}, "prompt", ""),
        ({"prompt": [256]}, "prompt", "256 is no token"),
        ({"prompt": "x" * 100}, "prompt", "100 tokens, but the context holds 100"),
        ({"prompt": "x" * 60, "max_tokens": 50}, "max_tokens", "60 tokens of the prompt and 50 to generate, but the context holds 100"),
        ({"echo": True, "logprobs": 1}, "echo", "leave out"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "already has a form, by response_format"),
        ({"structured_outputs": {}}, "structured_outputs", "names no form"),
        ({"user": "x" * 513}, "user", "at most 512"),
    ],
)
def test_a_mistake_names_its_field(fields, param, message):
    with pytest.raises(ApiError) as caught:
        wanted(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert message in caught.value.message


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', "\x00", '{"model": "\\ud800", "prompt": "x"}', "[" * 100_000])
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate_json(body)
    assert malformed(caught.value, UNSUPPORTED).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({}, "messages"),  # this tokenizer brings no template
    ],
)
def test_a_mistake_in_a_conversation_names_its_field(fields, param):
    with pytest.raises(ApiError) as caught:
        asyncio.run(ORDERS.chat(parsed(ChatRequest, {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_an_answer_can_be_sent_back_as_it_came():
    turn = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "function_call": None, "audio": None}
    assert parsed(ChatRequest, {"model": "m", "messages": [turn]}).messages[0].text == "x"


def test_prompts_of_every_kind():
    assert [w.prompt for w in wanted(prompt="ab")] == [(97, 98)]
    assert [w.prompt for w in wanted(prompt=["a", "b"])] == [(97,), (98,)]
    assert [w.prompt for w in wanted(prompt=[1, 2])] == [(1, 2)]
    assert [w.prompt for w in wanted(prompt=[[1], [2, 3]])] == [(1,), (2, 3)]


def test_each_continuation_has_its_own_seed_and_the_first_the_one_asked_for():
    seeds = [w.params.seed for w in wanted(n=4, seed=7)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [w.params.seed for w in wanted(n=4, seed=7)]
    assert params().seed != params().seed
