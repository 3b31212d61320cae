"""A batch asked of a service that is a function: what is asked how often, how many at a time, and when it ends."""

import asyncio
import json

import httpx2
import pytest

from rayplane.api.batch import asker as asker_module
from rayplane.api.batch.asker import MAX_GIVEN_UP, Asker, Conditions
from rayplane.api.batch.client import Client, root_of
from rayplane.api.batch.lines import Ask
from rayplane.control.stop import Stop
from rayplane.errors import RayplaneError

CONDITIONS = Conditions(concurrency=None, most=100, drain_s=20.0, patience_s=60.0)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Who asks again does so soon."""
    monkeypatch.setattr("rayplane.api.batch.verdict.AGAIN_S", 0.01)


class Heard:
    """A listener that remembers."""

    def __init__(self):
        self.answers, self.lost, self.left = {}, {}, []

    def answered(self, ask, answer):
        assert ask.custom_id not in self.answers
        self.answers[ask.custom_id] = answer.status

    def given_up(self, ask, reason):
        self.lost[ask.custom_id] = reason

    def leaving(self, num_out, by_s):
        self.left.append((num_out, by_s))


class Service:
    """Answers by a function of (prompt, how often it was asked); counts how many are there at a time."""

    def __init__(self, answer, took_s=0.0):
        self.answer, self.took_s = answer, took_s
        self.asked, self.now, self.peak = {}, 0, 0

    async def __call__(self, request):
        if request.url.path == "/health":
            return httpx2.Response(200, json={"replicas": [{"state": "live", "running": self.now, "waiting": 0}]})
        prompt = json.loads(request.content)["prompt"]
        self.asked[prompt] = self.asked.get(prompt, 0) + 1
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await asyncio.sleep(self.took_s)
            answer = self.answer(prompt, self.asked[prompt])
        finally:
            self.now -= 1
        if isinstance(answer, Exception):
            raise answer
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        return httpx2.Response(status, json={"error": {"message": "no"}} if status != 200 else {"id": "c"}, headers=headers)


def play(service, num=20, conditions=CONDITIONS, stop=None, endless=False, heard=None):
    """(ending, listener, requests that were begun)."""
    heard, begun = heard or Heard(), []

    def asks():
        number = 0
        while endless or number < num:
            begun.append(number)
            yield Ask(number, str(number), "/v1/completions", json.dumps({"prompt": str(number)}))
            number += 1

    async def run():
        async with Client("http://service/v1", transport=httpx2.MockTransport(service)) as client:
            return await Asker(client, conditions, heard).run(asks(), stop or Stop())

    return asyncio.run(asyncio.wait_for(run(), 60)), heard, begun


def test_each_is_asked_once_and_refusals_are_answers():
    service = Service(lambda prompt, _: 400 if prompt in "37" else 200)
    ending, heard, _ = play(service)
    assert ending == "done" and set(service.asked.values()) == {1}
    assert heard.answers == {str(i): 400 if i in (3, 7) else 200 for i in range(20)}


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"Retry-After": "0"}),
        (503, {"Retry-After": "0"}),
        500,
        httpx2.ConnectError("refused"),
        httpx2.ReadError("reset"),
        httpx2.RemoteProtocolError("closed"),
    ],
    ids=str,
)
def test_what_the_service_loses_is_asked_again(trouble):
    service = Service(lambda prompt, times: trouble if times < 3 and int(prompt) % 2 else 200)
    ending, heard, _ = play(service)
    assert ending == "done" and not heard.lost
    assert heard.answers == {str(i): 200 for i in range(20)}
    assert service.asked == {str(i): 3 if i % 2 else 1 for i in range(20)}


def test_a_request_that_always_fails_is_given_up_and_the_others_go_on():
    ending, heard, _ = play(Service(lambda prompt, _: 500 if prompt == "5" else 200))
    assert (ending, heard.lost) == ("done", {"5": "500: no"})
    assert heard.answers == {str(i): 200 for i in range(20) if i != 5}


def test_a_service_that_fails_with_everything_is_left():
    service = Service(lambda *_: 500)
    with pytest.raises(RayplaneError, match="fails with every request, the last time with: 500: no"):
        play(service, endless=True)
    assert len(service.asked) < 4 * MAX_GIVEN_UP


def test_while_nobody_listens_no_more_requests_are_read():
    begun = []
    service = Service(lambda prompt, _: begun.append(prompt) or httpx2.ConnectError("refused"))
    with pytest.raises(RayplaneError, match=r"has served nothing for 0.3 s: nobody listens there \(refused\)"):
        play(service, endless=True, conditions=Conditions(None, 100, 20.0, patience_s=0.3))
    assert len(service.asked) <= 32


@pytest.mark.parametrize("concurrency", [1, 7])
def test_no_more_are_out_than_was_said(concurrency):
    service = Service(lambda *_: 200, took_s=0.002)
    assert play(service, 40, Conditions(concurrency, 100, 20.0))[0] == "done"
    assert service.peak == concurrency


def test_more_go_out_while_the_engines_take_them(monkeypatch):
    monkeypatch.setattr(asker_module, "LOOK_EVERY_S", 0.05)
    service = Service(lambda *_: 200, took_s=0.2)
    assert play(service, 400)[0] == "done"
    assert 32 <= service.peak <= 100


def test_a_stop_lets_what_is_out_end_and_begins_nothing():
    stop = Stop()
    service = Service(lambda prompt, _: stop.request() and 200 if prompt == "10" else 200, took_s=0.05)
    ending, heard, begun = play(service, endless=True, stop=stop)
    assert ending == "stopped" and len(begun) < 100
    assert set(heard.answers) == {str(i) for i in begun} and service.now == 0
    assert [by_s for _, by_s in heard.left] == [20.0]


def test_a_second_stop_waits_for_nothing():
    stop = Stop()

    class Impatient(Heard):
        def leaving(self, num_out, by_s):
            super().leaving(num_out, by_s)
            if len(self.left) == 1:
                stop.request()

    class Hanging(Service):
        async def __call__(self, request):
            if self.now == 3 and request.url.path != "/health":
                stop.request()  # while the fourth is on its way
            return await super().__call__(request)

    service = Hanging(lambda *_: 200, took_s=600.0)
    ending, heard, _ = play(service, 4, stop=stop, heard=Impatient())
    assert (ending, heard.answers, service.now) == ("stopped", {}, 0)
    assert heard.left == [(4, 20.0), (4, 0.0)]


def test_a_fault_of_ours_ends_the_run():
    with pytest.raises(ZeroDivisionError):
        play(Service(lambda *_: 1 // 0))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a:port"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(RayplaneError, match="--url"):
        root_of(url)
