"""What a streamed token costs through Ray Serve, beside token_path.py: python benchmarks/serve_proxy.py [--json]

    a deployment gives every stream a chunk a step ──▶ Ray Serve's own proxy, or HAProxy ──▶ client

Needs rayplane with `pip install 'ray[serve]'`, and haproxy; RAY_SERVE_ENABLE_HA_PROXY=1 in the environment chooses HAProxy. The
deployment makes the tokens: neither engine nor detokeniser is counted. CPU time is that of the replica and of what stands before it.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import ray
from fastapi import FastAPI, Request
from ray import serve
from starlette.responses import StreamingResponse
from token_path import cpu_s, stream

PORT = 8123
PARTS = ("ServeReplica", "ProxyActor", "haproxy", "HAProxyManager")
CHUNK = (
    'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1796048150,"model":"m",'
    '"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}\n\n'
)
app = FastAPI()


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
@serve.ingress(app)
class Source:
    """Answers with as many chunks as tokens are asked for, one a step."""

    def __init__(self, step_s: float):
        self._step_s = step_s

    @app.post("/v1/completions")
    async def completions(self, request: Request) -> StreamingResponse:
        """A stream."""
        body = await request.json()
        return StreamingResponse(self._chunks(body["max_tokens"]), media_type="text/event-stream")

    async def _chunks(self, count: int) -> AsyncIterator[str]:
        begun = time.monotonic()
        for number in range(1, count + 1):
            await asyncio.sleep(max(0.0, begun + number * self._step_s - time.monotonic()))
            yield CHUNK
        yield "data: [DONE]\n\n"


def processes() -> dict[int, str]:
    """Process ids of what a token passes, by the part that each plays."""
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if part := next((p for p in PARTS if p in line.partition(" ")[0] or p in line[:60]), None):
                found[int(place.name)] = part
    return found


def measure(streams: int, tokens: int) -> dict[str, object]:
    """Cost and times of some streams at once."""

    async def run() -> list[list[float]]:
        return await asyncio.gather(*(stream(f"127.0.0.1:{PORT}", tokens) for _ in range(streams)))

    asyncio.run(run())
    parts = processes()
    before, begun = {pid: cpu_s(pid) for pid in parts}, time.perf_counter()
    times = asyncio.run(run())
    wall_s = time.perf_counter() - begun
    used: dict[str, float] = dict.fromkeys(sorted(set(parts.values())), 0.0)
    for pid, part in parts.items():
        used[part] += (cpu_s(pid) - before[pid]) / (streams * tokens) * 1e6
    cuts = statistics.quantiles([b - a for chunks in times for a, b in pairwise(chunks)], n=100)
    return {
        "streams": streams,
        "tokens_s": round(streams * tokens / wall_s, 1),
        "cpu_us_per_token": round(sum(used.values()), 1),
        "by_part": {part: round(value, 1) for part, value in used.items()},
        "itl_p50_ms": round(cuts[49] * 1e3, 2),
        "itl_p99_ms": round(cuts[98] * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=20.0)
    args = parser.parse_args()
    ray.init(address="local", num_cpus=4, log_to_driver=False, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Source.bind(args.step_ms / 1e3))
    try:
        result = {"step_ms": args.step_ms, **measure(args.streams, args.tokens)}
    finally:
        serve.shutdown()
        ray.shutdown()
    for name, value in result.items():
        print(f"{name:18} {value}")
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
