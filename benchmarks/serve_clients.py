"""Clients of many kinds for a load test: what they ask, when, how they read the answer, and what they saw.

at random     the gaps between arrivals are exponential (Poisson)         in bursts   BURST arrive at once, then nobody
whole         reads everything                                            slow        reads a little, waits, through a small buffer
cancelled     goes away midway

An HTTP client of its own, on a raw connection: how fast it reads is up to it, with no buffer in between.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal

Fate = Literal["whole", "slow", "cancelled"]
Length = Literal["short", "middle", "long"]
PROMPTS: dict[Length, tuple[int, int]] = {"short": (4, 32), "middle": (64, 192), "long": (384, 640)}
"""Words of a prompt, about a token each."""
SHARES: dict[Length, int] = {"short": 60, "middle": 30, "long": 10}
OUTPUTS = (8, 64)
BURST = 50
SLOW_BYTES, SLOW_S, SLOW_BUFFER = 256, 0.03, 4096
CANCELLED, SLOW = 0.10, 0.10
WORDS = ("time", "way", "day", "man", "world", "life", "hand", "part", "child", "eye", "place", "work", "week", "case", "point", "fact")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    at_s: float
    """When it is sent, after the begin."""
    length: Length
    prompt: str
    max_tokens: int
    fate: Fate
    leave_after: int
    """Events that a client reads before it goes away."""


@dataclass(slots=True)
class Seen:
    """What a client saw of an answer."""

    ask: Ask
    status: int = 0
    ttft_s: float | None = None
    e2e_s: float = 0.0
    tokens: int | None = None
    """As usage says at the end."""
    fault: str = ""


def asks(number: int, rate_s: float, seed: int) -> Iterator[Ask]:
    """Requests at a mean rate, the first half at random, the others in bursts."""
    rng, at_s = random.Random(seed), 0.0
    for i in range(number):
        if i < number // 2:
            at_s += rng.expovariate(rate_s)
        elif i % BURST == 0:
            at_s += BURST / rate_s
        length = rng.choices(list(SHARES), list(SHARES.values()))[0]
        words = rng.choices(WORDS, k=rng.randint(*PROMPTS[length]))
        chance = rng.random()
        fate: Fate = "cancelled" if chance < CANCELLED else "slow" if chance < CANCELLED + SLOW else "whole"
        tokens = rng.randint(*OUTPUTS)
        yield Ask(at_s, length, f"{seed}.{i} " + " ".join(words), tokens, fate, rng.randint(0, max(1, tokens // 2)))


class Clients:
    """Of one server: HOST, PORT, the model's name, and how many may wait for answers at a time."""

    def __init__(self, host: str, port: int, model: str, at_once: int):
        self._host, self._port, self._model = host, port, model
        self._room = asyncio.Semaphore(at_once)
        self.most_at_once = 0
        self._now = 0

    async def run(self, load: Iterator[Ask]) -> list[Seen]:
        """All of them, to the end."""
        began_s = time.monotonic()
        return await asyncio.gather(*(self._one(ask, began_s) for ask in load))

    async def _one(self, ask: Ask, began_s: float) -> Seen:
        await asyncio.sleep(max(0.0, ask.at_s - (time.monotonic() - began_s)))
        seen = Seen(ask)
        async with self._room:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            sent_s = time.monotonic()
            try:
                await self._ask(seen, sent_s)
            except (OSError, ValueError, EOFError) as error:
                seen.fault = f"{type(error).__name__}: {error}"
            seen.e2e_s = time.monotonic() - sent_s
            self._now -= 1
        return seen

    async def _ask(self, seen: Seen, sent_s: float) -> None:
        ask = seen.ask
        reader, writer = await self._open(ask.fate)
        try:
            writer.write(self._request(ask))
            seen.status = int((await reader.readline()).split()[1])
            while (await reader.readline()).strip():
                pass
            if seen.status == 200:
                await self._read(seen, reader, sent_s)
        finally:
            writer.close()

    async def _read(self, seen: Seen, reader: asyncio.StreamReader, sent_s: float) -> None:
        count, done = 0, False
        async for event in events(reader, seen.ask.fate == "slow"):
            if event == b"[DONE]":
                done = True
                continue
            content = json.loads(event)
            if "error" in content:
                seen.fault = f"in the stream: {content['error']}"
                return
            if usage := content.get("usage"):
                seen.tokens = usage["completion_tokens"]
            if any(choice["text"] for choice in content["choices"]) and seen.ttft_s is None:
                seen.ttft_s = time.monotonic() - sent_s
            count += 1
            if seen.ask.fate == "cancelled" and count > seen.ask.leave_after:
                return
        if not done:
            seen.fault = f"the stream broke off after {count} events"
        elif seen.tokens != seen.ask.max_tokens:
            seen.fault = f"{seen.tokens} tokens instead of {seen.ask.max_tokens}"

    async def _open(self, fate: Fate) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        sock.setblocking(False)
        if fate == "slow":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER)
        await asyncio.get_running_loop().sock_connect(sock, (self._host, self._port))
        return await asyncio.open_connection(sock=sock, limit=SLOW_BUFFER if fate == "slow" else 2**16)

    def _request(self, ask: Ask) -> bytes:
        fields = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True}
        body = json.dumps({"model": self._model, "prompt": ask.prompt, "max_tokens": ask.max_tokens, **fields}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def events(reader: asyncio.StreamReader, slowly: bool) -> AsyncIterator[bytes]:
    """The data of each event of a chunked stream of them."""
    text = b""
    while size := int(await reader.readline() or b"0", 16):
        left = size
        while left:
            piece = await reader.readexactly(min(left, SLOW_BYTES) if slowly else left)
            left -= len(piece)
            text += piece
            if slowly:
                await asyncio.sleep(SLOW_S)
        await reader.readline()
        *whole, text = text.split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                yield event.removeprefix(b"data: ")
