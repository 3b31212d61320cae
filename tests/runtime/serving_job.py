"""A service of a tiny model, run by the command as a user would: real driver, real ingress, real ranks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import openai
from dummies import eventually, runs
from safetensors.numpy import save_file

JOB = """\
name: {name}
model: {{path: {model}, dtype: fp32}}
serve:
  port: {port}
  tokenizer: bytes
  max_context: 512
  drain_s: {drain_s}
  batch: {{max_sequences: 32, max_tokens: 128}}
layout: {layout}
limits: {{restarts: 2, step_timeout_s: 60}}
"""
DEFAULTS = {"port": 0, "drain_s": 30, "layout": "{dp: 2}"}
START_S = 150.0
LAYERS, HIDDEN, HEADS, KV_HEADS, MLP, VOCAB = 3, 64, 4, 2, 96, 256
LETTERS = 128
"""Only ids below that are ever drawn, so that a text shows every token."""


def save_model(folder: Path) -> None:
    """A random Llama as Hugging Face keeps it; its weights are large, so that no two tokens are nearly equally likely."""
    head, rng = HIDDEN // HEADS, np.random.default_rng(3)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": MLP,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.input_layernorm": (HIDDEN,), f"{layer}.post_attention_layernorm": (HIDDEN,)}
        shapes |= {
            f"{layer}.self_attn.{name}_proj": (heads * head, HIDDEN) for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        }
        shapes |= {f"{layer}.self_attn.o_proj": (HIDDEN, HEADS * head), f"{layer}.mlp.down_proj": (HIDDEN, MLP)}
        shapes |= {f"{layer}.mlp.{name}_proj": (MLP, HIDDEN) for name in ("gate", "up")}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {f"{n}.weight": (rng.normal(1 if len(s) == 1 else 0, 0.3, s)).astype(np.float32) for n, s in shapes.items()}
    tensors["lm_head.weight"][LETTERS:] = 0
    save_file(tensors, folder / "model.safetensors")


class Service:
    """One `rayplane run` of the job in a folder. Ends with the `with` block."""

    def __init__(self, path: Path, *options: str, environment: dict[str, str] | None = None, text: str = "", **values: object):
        self.path, self.name = path, f"svc-{path.parent.name}-{path.name}"[:60]
        if not text:
            save_model(path / "model")
        (path / "job.yaml").write_text(text or JOB.format(name=self.name, model="model", **{**DEFAULTS, **values}))
        command = [sys.executable, "-m", "rayplane", "run", "job.yaml", "--json", *options]
        with (path / "out").open("w") as out, (path / "err").open("w") as err:
            self.driver = subprocess.Popen(command, cwd=path, stdout=out, stderr=err, env={**os.environ, **(environment or {})})

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.kill()
        self.driver.wait(30)

    @property
    def folder(self) -> Path:
        """The job's."""
        (folder,) = (path for path in (self.path / "runs").iterdir() if not path.name.startswith("."))
        return folder

    def status(self) -> dict[str, Any]:
        """What the driver wrote last."""
        files = list((self.path / "runs").glob("*/state.json"))
        status: dict[str, Any] = json.loads(files[0].read_text()) if files else {"urls": [], "replicas": []}
        return status

    @property
    def url(self) -> str:
        """Of the ingress."""
        return str(self.status()["urls"][0])

    def health(self) -> dict[str, str]:
        """Replicas by id, as the ingress sees them."""
        return {r["id"]: r["state"] for r in json.loads(get(f"{self.url}/health"))["replicas"]}

    def until_live(self, replicas: int) -> None:
        """Wait until so many answer."""

        def live() -> bool:
            assert self.driver.poll() is None, f"ended too early: {self.said()}"
            return bool(self.status()["urls"]) and list(self.health().values()).count("live") >= replicas

        assert eventually(live, START_S), f"not {replicas} live: {self.said()}"

    def ranks(self) -> dict[str, int]:
        """Process ids of what lives, by `replica-0/0` or `ingress/0`."""
        found, name = {}, self.folder.name
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and runs(int(process.name)):
                try:
                    words = (process / "cmdline").read_text().split("\0")
                except OSError:
                    continue
                if "rayplane.runtime.child" in words and words[3].startswith(f"{name}/"):
                    found[words[3].removeprefix(f"{name}/")] = int(process.name)
        return found

    def end(self, timeout_s: float = 60.0) -> int:
        """Wait for the command; its exit code."""
        return self.driver.wait(timeout_s)

    def result(self) -> dict[str, Any]:
        """The last line of standard output, which has no other."""
        (line,) = (self.path / "out").read_text().splitlines()
        final: dict[str, Any] = json.loads(line)
        return final

    def said(self) -> str:
        """What the command said to people."""
        return (self.path / "err").read_text()


def get(url: str) -> str:
    """What a page says, whatever its status."""
    try:
        with urllib.request.urlopen(url, timeout=5) as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def asked(prompt: str, tokens: int) -> dict[str, Any]:
    """A greedy request, as the client takes it."""
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "extra_body": {"ignore_eos": True}}


class Streams:
    """Streams that run together; `texts` grow while `play` runs."""

    def __init__(self, url: str, prompts: list[str], tokens: int):
        self._url, self._prompts, self._tokens = url, prompts, tokens
        self.texts = [""] * len(prompts)
        self.finished: list[str | None] = [None] * len(prompts)
        self.longest_gap_s = 0.0
        self._model = ""

    async def play(self, at: int = -1, disturb: Any = None) -> None:
        """Run all to their ends; `disturb` is called once, when so many letters have come in all."""
        async with openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key="none", timeout=60, max_retries=0) as client:
            (self._model,) = [model.id async for model in client.models.list()]
            await asyncio.gather(*(self._one(client, i) for i in range(len(self._prompts))), self._disturbed(at, disturb))

    async def _disturbed(self, at: int, disturb: Any) -> None:
        while disturb and sum(map(len, self.texts)) < at:
            await asyncio.sleep(0.002)
        if disturb:
            disturb()

    async def _one(self, client: openai.AsyncOpenAI, number: int) -> None:
        last_s = time.monotonic()
        stream = await client.completions.create(model=self._model, stream=True, **asked(self._prompts[number], self._tokens))
        async for chunk in stream:
            for choice in chunk.choices:
                self.texts[number] += choice.text
                self.finished[number] = choice.finish_reason or self.finished[number]
            now_s = time.monotonic()
            self.longest_gap_s, last_s = max(self.longest_gap_s, now_s - last_s), now_s


def play(url: str, prompts: list[str], tokens: int, at: int = -1, disturb: Any = None) -> Streams:
    """Streams that have ended."""
    streams = Streams(url, prompts, tokens)
    asyncio.run(streams.play(at, disturb))
    return streams
