"""The service keeps its limits, tells the truth about itself, and lets nobody down who keeps them, too."""

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request

import openai
import pytest
from fake_engine import FakeEngine
from serving import Serving


def fetch(url, body=None, headers=None, method=None):
    """(status, headers, body) of a request."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def complete(serving, **fields):
    return fetch(f"{serving.url}/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 2, **fields})


def test_every_error_is_an_error_object(serving):
    for path, method, status in (("/nowhere", "GET", 404), ("/v1/completions", "GET", 405), ("/v1/models/none", "GET", 404)):
        code, _, body = fetch(serving.url + path, method=method)
        assert code == status
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_keys_are_asked_for():
    with Serving(FakeEngine(), api_keys=("first", "second")) as serving:
        with pytest.raises(openai.AuthenticationError, match="not known"):
            serving.client("wrong").models.list()
        status, headers, _ = fetch(f"{serving.url}/v1/models")
        assert status == 401
        assert headers["WWW-Authenticate"] == "Bearer"
        assert serving.client("first").models.list().data
        assert serving.client("second").models.list().data
        assert fetch(f"{serving.url}/health")[0] == 200


def test_a_large_body_is_refused_before_it_is_read():
    with Serving(FakeEngine(), max_body_bytes=1000) as serving:
        status, _, body = complete(serving, prompt="x" * 2000)
        assert status == 413
        assert "1000 bytes" in json.loads(body)["error"]["message"]
        assert complete(serving)[0] == 200


def test_a_body_that_does_not_say_its_length_is_cut_off():
    with Serving(FakeEngine(), max_body_bytes=1000) as serving:
        host, port = serving.service.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            sock.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 413")


def test_a_full_queue_says_when_to_come_again():
    with Serving(FakeEngine(step_s=0.05, max_sequences=2), max_queue=3) as serving:

        async def burst():
            client = serving.aclient()
            asked = [client.completions.create(model="m", prompt="x", max_tokens=3) for _ in range(12)]
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = asyncio.run(burst())
        refused = [a for a in answers if isinstance(a, openai.RateLimitError)]
        assert len(refused) == 12 - 2 - 3
        assert refused[0].response.headers["Retry-After"] == "1"
        assert refused[0].code == "queue_full"
        assert complete(serving)[0] == 200


def test_more_choices_than_can_wait_are_refused_at_once():
    with Serving(FakeEngine(max_sequences=2), max_queue=3) as serving:
        assert complete(serving, n=6)[0] == 429
        assert complete(serving, n=5)[0] == 200


def test_without_a_replica_requests_wait_and_then_503():
    with Serving(no_replica_s=0.3) as serving:
        begun = time.monotonic()
        status, headers, body = complete(serving)
        assert status == 503
        assert headers["Retry-After"]
        assert json.loads(body)["error"]["code"] == "no_replica"
        assert time.monotonic() - begun >= 0.3
        assert fetch(f"{serving.url}/health")[0] == 503


def test_a_replica_that_comes_gets_what_waited():
    with Serving() as serving:

        async def scene():
            asked = asyncio.ensure_future(serving.aclient().completions.create(model="m", prompt="x", max_tokens=2))
            await asyncio.sleep(0.2)
            assert not asked.done()
            serving.engines = (FakeEngine(),)
            serving.call(serving.engines[0].start())
            serving.do(serving.service.fleet.set_replicas, serving.places())
            return await asked

        assert asyncio.run(scene()).usage.completion_tokens == 2


def test_the_deadline_ends_a_request():
    with Serving(FakeEngine(step_s=0.05), deadline_s=0.3) as serving:
        status, _, body = complete(serving, max_tokens=200)
        assert status == 504
        assert json.loads(body)["error"]["code"] == "deadline"
        status, _, body = complete(serving, max_tokens=200, stream=True)
        events = body.decode().split("\n\n")
        assert status == 200
        assert "deadline" in events[-2]
        assert "[DONE]" not in events[-2]
        serving.until(lambda: not serving.engines[0].live)


def test_health_names_each_replica(serving):
    status, _, body = fetch(f"{serving.url}/health")
    assert status == 200
    assert json.loads(body)["replicas"][0]["id"] == "r0"
    serving.loop.call_soon_threadsafe(serving.engines[0].stop)
    begun = time.monotonic()
    while fetch(f"{serving.url}/health")[0] == 200:
        assert time.monotonic() - begun < 2
        time.sleep(0.02)
    told = json.loads(fetch(f"{serving.url}/health")[2])
    assert told["status"] == "no replica"
    assert "silent" in told["replicas"][0]["reason"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_stops_its_sequence(serving, stream):
    engine = serving.engines[0]
    engine.step_s = 0.02
    host, port = serving.service.address.split(":")
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 400, "stream": stream}).encode()
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        serving.until(lambda: any(work.output for work in engine.live.values()))
    gone_at = engine.steps
    serving.until(lambda: not engine.live)
    assert engine.steps - gone_at <= 2
    assert serving.service.fleet.in_flight == 0


def test_the_secret_is_needed():
    with Serving(FakeEngine(), no_replica_s=0.1) as right:
        with Serving(secret="guess", no_replica_s=0.1) as wrong:
            wrong.do(wrong.service.fleet.set_replicas, right.places())
            wrong.until(lambda: wrong.service.fleet.replicas[0].state == "lost")
            assert complete(wrong)[0] == 503
        assert complete(right)[0] == 200


def test_draining_finishes_what_runs_and_refuses_the_rest():
    with Serving(FakeEngine(step_s=0.02), drain_s=5) as serving:

        async def scene():
            asked = asyncio.ensure_future(serving.aclient().completions.create(model="m", prompt="x", max_tokens=60))
            await asyncio.to_thread(serving.until, lambda: serving.engines[0].live)
            drained = asyncio.run_coroutine_threadsafe(serving.service.drain(), serving.loop)
            await asyncio.sleep(0.05)
            status, headers, _ = await asyncio.to_thread(complete, serving)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert (await asyncio.to_thread(fetch, f"{serving.url}/health"))[0] == 503
            answer = await asked
            await asyncio.wrap_future(drained)
            return answer

        assert asyncio.run(scene()).usage.completion_tokens == 60


def test_draining_ends_after_its_time():
    with Serving(FakeEngine(step_s=0.02), drain_s=0.2) as serving:

        async def scene():
            asked = asyncio.ensure_future(serving.aclient().completions.create(model="m", prompt="x", max_tokens=400))
            await asyncio.to_thread(serving.until, lambda: serving.engines[0].live)
            begun = time.monotonic()
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(serving.service.drain(), serving.loop))
            took_s = time.monotonic() - begun
            with pytest.raises(openai.InternalServerError, match="the service has stopped"):
                await asked
            return took_s

        assert asyncio.run(scene()) < 3
        serving.until(lambda: not serving.engines[0].live)


@pytest.mark.parametrize("by", ["header", "user", "prompt_cache_key"])
def test_a_session_stays_with_its_replica(by):
    with Serving(FakeEngine("r0"), FakeEngine("r1"), FakeEngine("r2")) as serving:
        for session in ("s1", "s2", "s3", "s4"):
            for turn in range(3):
                body = {"model": "m", "prompt": f"{turn}{session}", "max_tokens": 1}
                headers = {"X-Session-Id": session} if by == "header" else {}
                body |= {} if by == "header" else {by: session}
                assert fetch(f"{serving.url}/v1/completions", body, headers)[0] == 200
        sent = [(submit.prompt[1:], engine.name) for engine in serving.engines for submit in engine.submitted]
        assert len(sent) == 12
        assert len(set(sent)) == 4
        assert len({name for _, name in sent}) == 3
