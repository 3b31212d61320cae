"""Whatever is sent, the answer is one that the published document lists, never a 500, and the engine is free afterwards."""

import http.client
import json

import pytest
import schemathesis
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from serving import Serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def fuzzed():
    with Serving(FakeEngine(step_s=0.0005, max_sequences=256), max_context=48, max_queue=2000) as running:
        yield running
        running.until(lambda: not running.engines[0].live)
        assert running.service.fleet.in_flight == 0
        assert running.client().completions.create(model="m", prompt="x", max_tokens=1).usage.completion_tokens == 1


@pytest.fixture(scope="module")
def document(fuzzed):
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [(*operation, mode) for operation in OPERATIONS for mode in GenerationMode if operation[0] == "POST" or mode.is_positive],
)
def test_answers_are_those_of_the_document(document, method, path, mode):
    """`negative`: requests that the document does not allow."""

    @given(document[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=25 if method == "POST" else 5, deadline=None, suppress_health_check=QUIET)
    def check(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "m"  # any other ends at 404
        case.call_and_validate(checks=CHECKS, timeout=10)

    check()


def test_the_document_has_no_other_operations(document):
    assert {(op.ok().method.upper(), op.ok().path) for op in document.get_all_operations()} == set(OPERATIONS)


def post(serving: Serving, path: str, body: bytes, headers=None) -> tuple[int, bytes]:
    host, port = serving.service.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**40), 10**40), st.floats(), st.text(max_size=20), st.just("x" * 5000)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)
FIELDS = st.sampled_from(
    [
        "prompt",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "stop",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "echo",
        "seed",
        "logit_bias",
        "min_p",
        "top_k",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "ignore_eos",
        "min_tokens",
        "stop_token_ids",
        "max_completion_tokens",
        "user",
        "priority",
        "response_format",
        "structured_outputs",
        "guided_regex",
        "guided_json",
        "guided_choice",
        "cache_salt",
        "tokens",
        "best_of",
        "tools",
        "unknown",
    ]
)


@given(PATHS, st.dictionaries(FIELDS, values, max_size=4))
@settings(max_examples=250, deadline=None, suppress_health_check=QUIET)
def test_any_json_is_answered_or_refused(fuzzed, path, fields):
    body = json.dumps(
        {"model": "m", "prompt": "x", "max_tokens": 2, **fields} if path == "/v1/completions" else {"model": "m", **fields}
    )
    status, answer = post(fuzzed, path, body.encode())
    assert status in (200, 400, 413, 429), answer
    if status != 200:
        assert json.loads(answer)["error"]["message"]


@given(PATHS, st.binary(max_size=300), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=QUIET)
def test_any_bytes_are_refused(fuzzed, path, noise, data):
    body = bytearray(b'{"model": "m", "prompt": "hello", "max_tokens": 3, "messages": [{"role": "user", "content": "\\u00e9"}]}')
    place = data.draw(st.integers(0, len(body) - 1))
    body[place : place + data.draw(st.integers(0, 10))] = noise
    status, answer = post(fuzzed, path, bytes(body))
    assert status in (200, 400), answer


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {}),
        (b"[" * 50_000, {}),
        (b'{"model": "m", "prompt": ' + b"9" * 10_000 + b"}", {}),
        (b'{"model": "m", "prompt": "x", "temperature": 1e999}', {}),
        (b'{"model": "m", "prompt": "x", "temperature": NaN}', {}),
        (b'{"model": "m", "prompt": "\\ud800"}', {}),
        (b'{"model": "m", "prompt": "x", "prompt": 5}', {}),
        (b"\xff\xfe{}", {"Content-Type": "application/json; charset=utf-16"}),
        (b"model=m&prompt=x", {"Content-Type": "application/x-www-form-urlencoded"}),
    ],
)
def test_malformed_bodies_are_refused_as_such(fuzzed, body, headers):
    status, answer = post(fuzzed, "/v1/completions", body, headers)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"
