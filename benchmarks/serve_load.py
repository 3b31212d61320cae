"""A service under a load that does its worst: python benchmarks/serve_load.py [--json] [--requests 1000] [--at-once 200] [--minutes 0]

Requests at random and in bursts, prompts of mixed lengths, a tenth cancelled midway, a tenth read slowly, against `rayplane run` of
jobs/serve-smollm2.yaml, or what listens at --url. Exit code 1 when one of these does not hold:

errors      nothing but 429, which says that the queue is full; every answer has all its tokens and its end
leaks       a moment after the last request nothing waits or runs, and no block of a cache is held
memory      resident memory of all processes at the end is within GROWTH of what it was after WARM of the time, which is
            judged in runs of at least JUDGED_MIN minutes: what ranks allocate once, they have by then
fairness    the longest wait for a first token is within FAIR times what serving everybody who may be ahead takes

    what serving everybody ahead takes = at_once * mean tokens of a request / tokens a second

--minutes M goes on with new requests until M minutes have passed. JSON: requests, statuses, faults, at_once, tokens_s, ttft_p99_s by
length of prompt, max_wait_s and its bound_s, rss_mb (warm, end, most), growth_mb_min (least squares), held (what was left).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve_clients import PROMPTS, Clients, Seen, asks
from serve_outside import samples
from serve_processes import HOST, end_in_order, tree_of
from serve_systems import MODEL, START_S, SYSTEMS, Servers
from serve_weights import Models
from systems import RunError

GAUGES = ("rayplane_kv_cache_usage_ratio", "rayplane_num_requests_running", "rayplane_num_requests_waiting")
SETTLE_S = 10.0
SAMPLE_S = 1.0
GROWTH, WARM, JUDGED_MIN = 0.05, 0.5, 2.0
FAIR = 2.0
EXPECTED = (0, 200, 429)
"""Statuses; 0 is of a client that left before it saw one."""


class Memory:
    """Resident bytes of a process and its descendants, once every SAMPLE_S while the context is open; of none, nothing."""

    def __init__(self, pid: int | None):
        self._pid = pid
        self._points: list[tuple[float, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def figures(self) -> dict[str, float]:
        """In MB, and MB a minute since it was warm."""
        if not self._points:
            return {}
        mb = [rss / 1e6 for _, rss in self._points]
        warm = round(WARM * (len(mb) - 1))
        slope = statistics.linear_regression([s for s, _ in self._points[warm:]], mb[warm:]).slope if len(mb) - warm > 1 else 0.0
        figures = {"warm": mb[warm], "end": mb[-1], "most": max(mb), "growth_mb_min": 60 * slope}
        return {name: round(value, 2) for name, value in figures.items()}

    def _watch(self) -> None:
        while self._pid and not self._end.wait(SAMPLE_S):
            self._points.append((time.monotonic(), sum(p.rss_bytes for p in tree_of(self._pid))))


@contextmanager
def serving(url: str, pid: int | None) -> Iterator[tuple[str, int | None]]:
    """(url, process) of the server: what listens there, or one that is started for this."""
    if url:
        yield url.rstrip("/"), pid
        return
    with tempfile.TemporaryDirectory() as name:
        # rayplane takes the wheel's own file; no other form of the model is needed.
        servers = Servers(Models(Path(), Path()), Path(name))
        with servers.start("rayplane") as server:
            server.wait(SYSTEMS["rayplane"].ready, START_S)
            yield server.url, server.pid


async def drive(clients: Clients, args: argparse.Namespace) -> list[Seen]:
    """One load after the other until the time is over."""
    seen, end_s, seed = list[Seen](), time.monotonic() + 60 * args.minutes, args.seed
    while not seen or time.monotonic() < end_s:
        seen += await clients.run(asks(args.requests, args.rate, seed))
        seed += 1
    return seen


def left(url: str) -> dict[str, float]:
    """The sum over replicas of what should come down to 0, once it has, or SETTLE_S have passed."""
    end_s = time.monotonic() + SETTLE_S
    while True:
        held = {name: sum(value for _, value in samples(url, name)) for name in GAUGES}
        if not any(held.values()) or time.monotonic() > end_s:
            return held
        time.sleep(SAMPLE_S / 4)


def outcome(seen: list[Seen], wall_s: float, at_once: int) -> dict[str, Any]:
    """The figures of all answers."""
    done = [s for s in seen if s.tokens is not None]
    tokens = sum(s.tokens or 0 for s in done)
    waits = [s.ttft_s for s in seen if s.ttft_s is not None]
    by_length = {name: [s.ttft_s for s in seen if s.ask.length == name and s.ttft_s is not None] for name in PROMPTS}
    faults = Counter(s.fault for s in seen if s.fault)
    faults.update(f"HTTP {s.status}" for s in seen if s.status not in EXPECTED)
    return {
        "requests": len(seen),
        "statuses": dict(sorted(Counter(s.status for s in seen).items())),
        "fates": dict(Counter(s.ask.fate for s in seen)),
        "faults": dict(faults.most_common(5)),
        "at_once": at_once,
        "wall_s": round(wall_s, 1),
        "tokens_s": round(tokens / wall_s, 1),
        "ttft_p50_s": {name: round(_quantile(times, 50), 3) for name, times in by_length.items()},
        "ttft_p99_s": {name: round(_quantile(times, 99), 3) for name, times in by_length.items()},
        "max_wait_s": round(max(waits, default=0.0), 2),
        "bound_s": round(FAIR * at_once * (tokens / max(1, len(done))) / max(tokens / wall_s, 1e-9), 2),
    }


def broken(result: dict[str, Any]) -> list[str]:
    """What does not hold."""
    rss = result["rss_mb"] if result["wall_s"] >= 60 * JUDGED_MIN else {}
    rules = {
        "errors": not result["faults"],
        "leaks": not any(result["held"].values()),
        "memory": not rss or rss["end"] <= rss["warm"] * (1 + GROWTH),
        "fairness": result["max_wait_s"] <= result["bound_s"],
    }
    return [name for name, holds in rules.items() if not holds]


def _quantile(times: list[float], percent: int) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else sum(times)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--url", default="", help="a server that runs already")
    parser.add_argument("--pid", type=int, help="its process, whose memory is watched")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second, on the average")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to go on with more of them")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    end_in_order()
    args = options()
    try:
        with serving(args.url, args.pid) as (url, pid), Memory(pid) as memory:
            clients, began_s = Clients(HOST, int(url.rsplit(":", 1)[1]), args.model, args.at_once), time.monotonic()
            seen = asyncio.run(drive(clients, args))
            result = outcome(seen, time.monotonic() - began_s, clients.most_at_once)
            result["held"] = left(url)
    except RunError as error:
        raise SystemExit(f"the server {error}") from error
    result["rss_mb"] = memory.figures()
    result["broken"] = broken(result)
    for name, value in result.items():
        print(f"{name:12} {value}")
    if args.json:
        print(json.dumps(result))
    raise SystemExit(1 if result["broken"] else 0)


if __name__ == "__main__":
    main()
