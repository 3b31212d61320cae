"""Runs the load generator against a server: distinct prompts, a number of requests at a time, and what its last line says.

loadgen.py --url URL --model M --tokenizer DIR --concurrency C --requests N --prompt-tokens 128 --max-tokens 64 ─▶ one JSON object

A row: tok_s (output tokens a second), ttft_p50, ttft_p99, itl_p50, itl_p99 (ms), cpu_s of the server, other_cpu_s of the rest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from serve_processes import Running
from serve_systems import MODEL
from systems import RunError

FIGURES = ("tok_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
REQUESTS = {1: 12, 8: 48, 32: 160}
QUICK_SHARE = 4
TIMEOUT_S = 900.0
COUNTING, COUNTED = "1, 2, 3, 4, 5, 6, 7, 8,", " 9, 10, 11"
"""A prompt, and how every correct server goes on."""


@dataclass(frozen=True, slots=True)
class Generator:
    """The script, and the folder with the model's tokenizer."""

    script: Path
    tokenizer: Path
    quick: bool = False

    DEFAULT: ClassVar[Path] = Path(__file__).parent.parent.parent / "shared" / "bench" / "loadgen.py"

    def run(self, server: Running, concurrency: int, extra: Mapping[str, object]) -> dict[str, float]:
        """A row of figures; RunError unless every request had all its tokens."""
        number = REQUESTS.get(concurrency, 5 * concurrency) // (QUICK_SHARE if self.quick else 1)
        options = {
            "url": server.url,
            "model": MODEL,
            "tokenizer": self.tokenizer,
            "concurrency": concurrency,
            "requests": max(number, concurrency),
            "prompt-tokens": PROMPT_TOKENS,
            "max-tokens": OUTPUT_TOKENS,
            # Prompts of other runs on the same server must not help this one.
            "seed": concurrency,
            "warmup": min(concurrency, 4),
            "server-pid": server.pid,
            "extra": json.dumps(extra) if extra else "",
        }
        command = [sys.executable, str(self.script), *(part for key, value in options.items() for part in (f"--{key}", str(value)))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        lines = done.stdout.splitlines()
        if not lines:
            raise RunError(f"the load generator said nothing: {done.stderr.strip()[-300:]}")
        said = json.loads(lines[-1])
        if said["errors"] or said["tokens_per_request"] != OUTPUT_TOKENS:
            raise RunError(
                f"at {concurrency}: {said['errors']} errors ({said['first_error']}), {said['tokens_per_request']} tokens each"
            )
        # Without usage tokens are counted by events, and nobody says how long the prompt was.
        if said["usage_from_server"] and said["prompt_tokens_seen"] < PROMPT_TOKENS:
            raise RunError(f"at {concurrency}: prompts of {said['prompt_tokens_seen']} tokens instead of {PROMPT_TOKENS}")
        return row_of(said)


def row_of(said: dict[str, Any]) -> dict[str, float]:
    """The figures of a run."""
    times = {f"{name}_{p}": said[f"{name}_ms"][p] for name in ("ttft", "itl") for p in ("p50", "p99")}
    return {"tok_s": said["out_tok_s"], **times, "cpu_s": said["server_cpu_s"], "other_cpu_s": said["other_cpu_s"]}


def check_answer(server: Running) -> None:
    """RunError where a server does not go on as the model does."""
    body = json.dumps({"model": MODEL, "prompt": COUNTING, "max_tokens": 12, "temperature": 0, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            events = [line[6:] for line in answer if line.startswith(b"data: {")]
    except OSError as error:
        raise RunError(f"does not answer: {error}") from error
    text = "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
    if not text.startswith(COUNTED):
        raise RunError(f"goes on with {text!r} after {COUNTING!r}")
