"""The ingress as a process: a gang of one rank under the runtime's own protocol."""

import asyncio
import os
import signal
import socket
import threading
import time
from dataclasses import asdict, replace

import openai
import pytest
from fake_engine import FakeEngine
from serving import CONFIG, end, expected

from rayplane.runtime.group import Launch
from rayplane.runtime.local import LocalGroup
from rayplane.serve.sampling import SamplingParams
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot


class Owner:
    """A LocalGroup with one ingress, and two engines in a thread."""

    def __init__(self, **changes):
        self.engines = [FakeEngine("r0", 0.01), FakeEngine("r1", 0.01)]
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        for engine in self.engines:
            asyncio.run_coroutine_threadsafe(engine.start(), self.loop).result(10)
        self.seen = []
        self.group = LocalGroup()
        config = {**asdict(replace(CONFIG, **changes)), "replicas": self.places()[:1]}
        placement = Placement((Slot(0, 0, 0, (0,), "", ""),))
        self.group.start(Launch("api", Layout(), placement, "rayplane.api.server", config))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.group.close()
        asyncio.run_coroutine_threadsafe(end(self.engines), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)

    def places(self):
        return [{"id": engine.name, "address": engine.address} for engine in self.engines]

    def wait(self, kind, condition=lambda message: True, timeout_s=20.0):
        """The first message of that type for which the condition holds."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            for item in self.group.poll(0.1):
                self.seen.append(item.message["type"])
                if item.message["type"] == kind and condition(item.message):
                    return item.message
                assert item.message["type"] not in ("failed", "exit") or kind in ("failed", "exit"), item.message
        raise AssertionError(f"no {kind}; there were {self.seen}")

    def client(self, address):
        return openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0, timeout=20)


def test_an_ingress_serves_follows_its_owner_and_drains():
    with Owner() as owner:
        client = owner.client(owner.wait("serving")["address"])
        text = expected(b"hello", 30, SamplingParams(temperature=0))
        ask = {"model": "m", "prompt": "hello", "max_tokens": 30, "temperature": 0}
        assert client.completions.create(**ask).choices[0].text == text
        traffic = owner.wait("traffic", lambda m: m["output_tokens_s"] > 0)
        assert traffic["itl_p99_s"] > 0.005
        assert set(traffic["replicas"]) == {"r0"}
        owner.group.send({"type": "replicas", "replicas": owner.places()[1:]})
        owner.wait("traffic", lambda m: set(m["replicas"]) == {"r1"} and m["replicas"]["r1"]["state"] == "live")
        stream = iter(client.completions.create(**ask, stream=True))
        first = next(stream).choices[0].text
        owner.group.send({"type": "drain"})
        assert first + "".join(chunk.choices[0].text for chunk in stream) == text
        assert owner.wait("done")["drained"] is True
        assert owner.wait("exit")["code"] == 0
        assert [submit.prompt for submit in owner.engines[1].submitted] == [tuple(b"hello")]


def test_sigterm_drains():
    with Owner() as owner:
        client = owner.client(owner.wait("serving")["address"])
        stream = iter(client.completions.create(model="m", prompt="hello", max_tokens=30, stream=True))
        next(stream)
        os.kill(owner.group.pids[0], signal.SIGTERM)
        assert len(list(stream)) == 29
        owner.wait("done")
        assert owner.wait("exit")["code"] == 0


def test_a_port_that_is_taken_is_told_to_the_owner():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Owner(port=port) as owner:
            told = owner.wait("failed")
            assert told["kind"] == "user"
            assert f"serve.port: 127.0.0.1:{port} is in use; choose another" in told["message"]


@pytest.mark.parametrize("field", ["secret", "api_keys"])
def test_secrets_are_not_printed(field):
    assert field not in repr(CONFIG)
