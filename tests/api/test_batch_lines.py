"""Lines of a batch: which requests they are, and what is said of those that are none."""

import json

import pytest

from rayplane.api.batch.lines import LineError, Terms, read_line

TERMS = Terms("m")
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
TURNS = [{"role": "user", "content": "hi"}]


def read(line, terms=TERMS, number=7):
    return read_line((line if isinstance(line, str) else json.dumps(line)).encode(), number, terms)


def enveloped(body, **changes):
    return {"custom_id": "a", "method": "POST", "url": COMPLETION, "body": body, **changes}


@pytest.mark.parametrize(
    ("line", "custom_id", "path", "body"),
    [
        ({"prompt": "x"}, "line-7", COMPLETION, {"prompt": "x"}),
        ({"id": "a", "prompt": "x", "max_tokens": 3}, "a", COMPLETION, {"prompt": "x", "max_tokens": 3}),
        ({"id": 12, "prompt": [1, 2]}, "12", COMPLETION, {"prompt": [1, 2]}),
        ({"messages": TURNS, "seed": 3}, "line-7", CHAT, {"messages": TURNS, "seed": 3}),
        (enveloped({"prompt": "x"}), "a", COMPLETION, {"prompt": "x"}),
        (enveloped({"messages": TURNS}, url=CHAT), "a", CHAT, {"messages": TURNS}),
        ({"url": COMPLETION, "body": {"prompt": "x", "model": "m"}}, "line-7", COMPLETION, {"prompt": "x"}),
    ],
)
def test_both_forms_become_requests(line, custom_id, path, body):
    ask = read(line)
    assert (ask.line, ask.custom_id, ask.path) == (7, custom_id, path)
    assert json.loads(ask.body) == {**body, "model": "m"}


def test_both_forms_of_a_request_are_one_request():
    assert read({"id": "a", "prompt": "x"}).id == read(enveloped({"prompt": "x"})).id
    assert len({read({"prompt": "x", **more}).id for more in ({}, {"max_tokens": 1}, {"max_tokens": 2})}) == 3


@pytest.mark.parametrize(
    ("line", "field", "said"),
    [
        ('{"prompt": "x"', "", "is no JSON (Expecting ',' delimiter"),
        ("[1]", "", "expected an object with prompt or messages, got a list"),
        ('{"prompt": "x", "temperature": NaN}', "", "NaN is no number of JSON"),
        ("[" * 100_000, "", "is nested too deeply"),
        ({"max_tokens": 3}, "prompt", "is missing; give prompt or messages"),
        ({"promt": "x"}, "prompt", "is missing, did you mean 'promt'?"),
        ({"prompt": "x", "messages": TURNS}, "messages", "stands beside prompt"),
        ({"prompt": "x", "temprature": 1}, "temprature", "is no field of this request, did you mean 'temperature'?"),
        ({"prompt": "x", "temperature": 3}, "temperature", "less than or equal to 2, got 3"),
        ({"prompt": "x", "tools": []}, "tools", "is not supported by this server"),
        ({"prompt": "x", "stream": True}, "stream", "come whole; leave it out"),
        ({"prompt": "x", "model": "other"}, "model", "the service has 'm', not 'other'"),
        ({"prompt": "x", "custom_id": "a"}, "custom_id", "is no field of this request"),
        ({"prompt": "x", "id": ["a"]}, "id", "got a list"),
        ({"prompt": "x", "id": True}, "id", "got true"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "is missing; add it"),
        (enveloped({"prompt": "x", "top_p": 2}), "body.top_p", "less than or equal to 1, got 2"),
        (enveloped({"prompt": "x", "model": "other"}), "body.model", "--model m"),
        (enveloped({"messages": TURNS}), "body.prompt", "is missing; add it"),
        (enveloped({"prompt": "x"}, url="/v1/embeddings"), "url", "'/v1/embeddings'"),
        (enveloped({"prompt": "x"}, extra=1), "extra", "is no field"),
        ({"custom_id": "a", "url": COMPLETION}, "body", "is missing; add it"),
    ],
)
def test_a_mistake_is_named_by_field_with_a_remedy(line, field, said):
    with pytest.raises(LineError) as caught:
        read(line)
    assert caught.value.field == field and said in caught.value.message


def test_text_in_another_encoding_is_refused():
    with pytest.raises(LineError, match="UTF-8"):
        read_line('{"prompt": "é"}'.encode("latin-1"), 1, TERMS)


def test_defaults_are_for_lines_that_do_not_say():
    terms = Terms("m", max_tokens=9, temperature=0.0)
    assert json.loads(read({"prompt": "x"}, terms).body) == {"prompt": "x", "model": "m", "max_tokens": 9, "temperature": 0.0}
    said = {"messages": TURNS, "max_completion_tokens": 2, "temperature": 1}
    assert json.loads(read(said, terms).body) == {**said, "model": "m"}


def test_a_model_that_the_command_names_is_asked_whatever_lines_say():
    assert json.loads(read({"prompt": "x", "model": "other"}, Terms("m", any_model=True)).body)["model"] == "m"
