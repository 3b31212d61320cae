"""A batch asked of a real ingress over real connections: its queue is short, its replicas are lost, it wants keys."""

import asyncio
import json
import re

import pytest
from fake_engine import FakeEngine
from serving import Serving, expected

from rayplane.api.batch.asker import Asker, Conditions
from rayplane.api.batch.client import Client
from rayplane.api.batch.lines import Ask
from rayplane.api.config import ReplicaAddress
from rayplane.control.stop import Stop
from rayplane.errors import RayplaneError
from rayplane.serve.sampling import SamplingParams

TOKENS = 8


class Heard:
    """Texts by custom_id, each once; `at` are called when so many are there."""

    def __init__(self, at=()):
        self.texts, self._at = {}, dict(at)

    def answered(self, ask, answer):
        assert ask.custom_id not in self.texts and answer.status == 200, answer
        self.texts[ask.custom_id] = answer.body["choices"][0]["text"]
        self._at.pop(len(self.texts), lambda: None)()

    def given_up(self, ask, reason):
        raise AssertionError(reason)

    def leaving(self, num_out, by_s):
        raise AssertionError("nobody has stopped it")


def ask_all(url, num, heard, concurrency=None, key=""):
    """The texts of so many prompts."""

    def asks():
        for number in range(num):
            body = {"model": "m", "prompt": f"prompt {number}", "max_tokens": TOKENS, "temperature": 0}
            yield Ask(number, str(number), "/v1/completions", json.dumps(body))

    async def run():
        async with Client(url, key) as client:
            return await Asker(client, Conditions(concurrency, 200, 20.0), heard).run(asks(), Stop())

    assert asyncio.run(asyncio.wait_for(run(), 60)) == "done"
    return heard.texts


def undisturbed(num):
    return {str(i): expected(f"prompt {i}".encode(), TOKENS, SamplingParams(temperature=0)) for i in range(num)}


def refusals(serving):
    """How often it has answered with 429."""
    found = re.findall(r'rayplane_http_responses_total\{.*status="429"\} ([\d.]+)', serving.service.metrics.text().decode())
    return sum(map(float, found))


@pytest.mark.parametrize("concurrency", [None, 100])
def test_a_short_queue_is_kept_full_without_a_storm_of_refusals(concurrency):
    num, running, waiting = 150, 8, 4
    with Serving(FakeEngine(step_s=0.02, max_sequences=running), max_queue=waiting) as serving:
        assert ask_all(serving.url, num, Heard(), concurrency) == undisturbed(num)
        first = (concurrency or 16) - running - waiting
        assert first <= refusals(serving) < first + num / 4
        assert len(serving.engines[0].submitted) == num


def test_what_no_replica_answers_is_asked_again_when_there_is_one():
    num, after = 60, 20
    with Serving(FakeEngine("r0", step_s=0.01), no_replica_s=0.2) as serving:

        def lose():
            serving.do(serving.engines[0].kill)
            serving.loop.call_soon_threadsafe(lambda: serving.loop.call_later(1.0, lambda: serving.loop.create_task(replace())))

        async def replace():
            engine = await FakeEngine("r1", step_s=0.01).start()
            serving.engines += (engine,)
            serving.service.fleet.set_replicas([ReplicaAddress("r1", engine.address)])

        assert ask_all(serving.url, num, Heard({after: lose}.items()), 10) == undisturbed(num)
        assert serving.engines[1].submitted


def test_a_service_with_keys_lets_nobody_in_without_one():
    with Serving(FakeEngine(), api_keys=("open",)) as serving:

        async def models(key):
            async with Client(serving.url, key) as client:
                return await client.models()

        assert asyncio.run(models("open")) == ["m"]
        with pytest.raises(RayplaneError, match="--api-key-file"):
            asyncio.run(models(""))
        assert len(ask_all(serving.url, 3, Heard(), key="open")) == 3


def test_a_service_that_is_not_there_is_named():
    async def models():
        async with Client("http://127.0.0.1:9") as client:
            return await client.models()

    with pytest.raises(RayplaneError, match=r"http://127\.0\.0\.1:9 does not answer"):
        asyncio.run(models())
