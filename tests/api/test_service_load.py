"""Many requests at once, some cancelled, some read slowly: all are answered, and nothing is left of them."""

import asyncio
import gc
import json
import random

from fake_engine import FakeEngine
from serving import Serving, expected

from rayplane.serve.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)


async def ask(address: str, body: dict, read) -> bytes:
    """Send a request over a connection of its own; `read` is what is done with the answer."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**16)
    try:
        data = json.dumps(body).encode()
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        return await read(reader)
    finally:
        writer.close()


async def whole(reader) -> bytes:
    return await reader.read()


async def part(reader) -> bytes:
    return await reader.read(300)


async def slow(reader) -> bytes:
    out = b""
    while piece := await reader.read(256):
        out += piece
        await asyncio.sleep(0.002)
    return out


def text_of(answer: bytes) -> str:
    """The text of a stream, whatever its chunks are."""
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)


async def load(address: str, count: int, at_once: int, seed: int) -> int:
    """`count` requests, `at_once` at a time, a tenth cut off, a tenth read slowly. Returns how many were checked."""
    rng, checked, room = random.Random(seed), 0, asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        nonlocal checked
        tokens, prompt = rng.randrange(1, 40), "abc " * rng.randrange(1, 30) + str(number)
        read = rng.choices([whole, part, slow], [8, 1, 1])[0]
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
        async with room:
            answer = await ask(address, body, read)
        assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        if read is not part:
            assert b"data: [DONE]" in answer
            assert text_of(answer) == expected(prompt.encode(), tokens, GREEDY)
            checked += 1

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))
            if rng.random() < 0.01:
                await asyncio.sleep(0.05)  # bursts
    return checked


def test_a_thousand_requests_leave_nothing_behind():
    with Serving(FakeEngine("r0", 0.004), FakeEngine("r1", 0.006)) as serving:
        assert asyncio.run(load(serving.service.address, 1000, 200, 0)) > 800
        serving.until(lambda: not any(engine.live for engine in serving.engines))
        fleet = serving.service.fleet
        assert (fleet.in_flight, fleet.moved) == (0, 0)
        assert fleet._router.work("r0") == fleet._router.work("r1") == 0
        shares = [len(engine.submitted) for engine in serving.engines]
        assert sum(shares) == 1000
        assert min(shares) > 300


def test_memory_stays_flat():
    with Serving(FakeEngine("r0", 0.001)) as serving:
        kinds = ("Generation", "Choice", "Flight", "Answer", "Delta", "Task", "RequestResponseCycle")

        def count() -> int:
            gc.collect()
            return sum(type(thing).__name__ in kinds for thing in gc.get_objects())

        asyncio.run(load(serving.service.address, 100, 50, 1))
        serving.until(lambda: serving.service.fleet.in_flight == 0)
        before = count()
        asyncio.run(load(serving.service.address, 300, 50, 2))
        serving.until(lambda: serving.service.fleet.in_flight == 0)
        assert count() <= before + 20


def test_what_comes_while_nobody_reads_is_one_chunk():
    with Serving(FakeEngine("r0", 0.001)) as serving:
        engine, app, sent = serving.engines[0], serving.service._server.config.app, []
        body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 400, "temperature": 0, "stream": True}).encode()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
        parts = iter([{"type": "http.request", "body": body}])

        async def receive():
            return next(parts, None) or await asyncio.sleep(60)

        async def send(message):
            sent.append(message.get("body", b""))
            while engine.live:  # a connection that takes no more
                await asyncio.sleep(0.005)

        serving.call(app(scope, receive, send))
        answer = b"".join(sent)
        assert b"data: [DONE]" in answer
        assert text_of(answer) == expected(b"x", 400, GREEDY)
        assert answer.count(b"data: {") <= 3
