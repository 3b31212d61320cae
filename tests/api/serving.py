"""A service over fake engines, all in one event loop of a thread of its own, so that any client can be used beside it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace

import openai
from fake_engine import SECRET, FakeEngine

from rayplane.api.config import ReplicaAddress, ServerConfig
from rayplane.api.ingress import Service

CONFIG = ServerConfig(model="m", tokenizer="bytes", secret=SECRET, max_context=512, port=0)


class Serving:
    """`with Serving(FakeEngine()) as serving`: serving.url answers once every engine is live."""

    def __init__(self, *engines: FakeEngine, **changes):
        self.engines, self.config = engines, replace(CONFIG, **changes)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Serving:
        self.thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *exc) -> None:
        with contextlib.suppress(TimeoutError):
            self.call(self.service.close())
        self.call(end(self.engines))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    async def _start(self) -> None:
        for engine in self.engines:
            await engine.start()
        self.service = Service(self.config)
        self.service.fleet.set_replicas(self.places())
        await self._until(lambda: sum(r.state == "live" for r in self.service.fleet.replicas) == len(self.engines))

    def places(self) -> list[ReplicaAddress]:
        return [ReplicaAddress(engine.name, engine.address) for engine in self.engines]

    @property
    def url(self) -> str:
        return f"http://{self.service.address}"

    def call(self, coroutine, timeout_s=20):
        """Run in the service's loop and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def do(self, function, *args) -> None:
        """Call in the service's loop and wait."""

        async def run():
            return function(*args)

        return self.call(run())

    def until(self, condition, timeout_s=5.0) -> None:
        """Wait for something to be so in the service's loop."""
        self.call(self._until(condition, timeout_s))

    async def _until(self, condition, timeout_s=5.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)

    def client(self, key="none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)

    def aclient(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)


async def end(engines) -> None:
    """Kill engines, and wait until nothing of them runs."""
    for engine in engines:
        engine.kill()
    await asyncio.gather(*(task for engine in engines for task in engine.tasks), return_exceptions=True)


def expected(prompt: bytes, count: int, params) -> str:
    """What a fake engine answers."""
    from fake_engine import next_token

    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, params))
    return bytes(tokens[len(prompt) :]).decode()
