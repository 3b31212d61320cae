"""transformers behind HTTP, as an application serves it that has nothing else: requests that wait are answered together, in static
batches, greedily and past every end, and each token is streamed as soon as it is there.

    serve_transformers.py HF_FOLDER MODEL_NAME PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

MOST = 32
"""Requests of a batch."""
GATHER_S = 0.02
"""How long a batch waits for requests that come together."""


@dataclass(eq=False)
class Asked:
    """A request. `out`: ids as they come, None at the end."""

    ids: list[int]
    max_tokens: int
    out: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)


class Rows(BaseStreamer):
    """Hands the tokens of a step to the requests of a batch. generate gives the prompts first."""

    def __init__(self, batch: list[Asked], loop: asyncio.AbstractEventLoop):
        self._batch, self._loop, self._step = batch, loop, -1

    def put(self, value: torch.Tensor) -> None:
        """Prompts, [B, S], then tokens, [B]."""
        self._step += 1
        if self._step:
            self._loop.call_soon_threadsafe(self._hand_out, value.reshape(-1).tolist(), self._step)

    def end(self) -> None:
        """Every request has had its own end."""

    def _hand_out(self, tokens: list[int], step: int) -> None:
        for asked, token in zip(self._batch, tokens, strict=True):
            if step <= asked.max_tokens:
                asked.out.put_nowait(token)
            if step == asked.max_tokens:
                asked.out.put_nowait(None)


class Model:
    """The model, and what waits for it."""

    def __init__(self, folder: str, name: str):
        self.name = name
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
        self._tokenizer.pad_token = self._tokenizer.eos_token
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self._waiting: asyncio.Queue[Asked] = asyncio.Queue()

    async def answer(self, prompt: str, max_tokens: int) -> AsyncIterator[str]:
        """Pieces of text; a token that ends within a character comes with the one that completes it."""
        asked, tokens, told = Asked(self._tokenizer.encode(prompt), max_tokens), list[int](), ""
        self._waiting.put_nowait(asked)
        while (token := await asked.out.get()) is not None:
            tokens.append(token)
            text = self._tokenizer.decode(tokens)
            yield "" if text.endswith("\ufffd") else text[len(told) :]
            told = told if text.endswith("\ufffd") else text

    def num_tokens(self, prompt: str) -> int:
        """Of a prompt."""
        return len(self._tokenizer.encode(prompt))

    async def work(self, app: web.Application) -> AsyncIterator[None]:
        """Batch after batch, while the application runs."""
        worker = asyncio.create_task(self._batches())
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker

    async def _batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._waiting.get()]
            await asyncio.sleep(GATHER_S)
            while not self._waiting.empty() and len(batch) < MOST:
                batch.append(self._waiting.get_nowait())
            await asyncio.to_thread(self._generate, batch, loop)

    @torch.inference_mode()
    def _generate(self, batch: list[Asked], loop: asyncio.AbstractEventLoop) -> None:
        padded = self._tokenizer.pad({"input_ids": [a.ids for a in batch]}, return_tensors="pt")
        most, pad = max(a.max_tokens for a in batch), self._tokenizer.pad_token_id
        ids, mask = padded["input_ids"], padded["attention_mask"]
        self._model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=most,
            eos_token_id=None,
            pad_token_id=pad,
            streamer=Rows(batch, loop),
        )


def application(model: Model) -> web.Application:
    """What the load generator asks for: /v1/models, and streamed /v1/completions."""

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model.name, "object": "model"}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt, count = body["prompt"], 0
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def event(content: object) -> None:
            await response.write(f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n".encode())

        async for text in model.answer(prompt, body["max_tokens"]):
            count += 1
            await event({"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": None}]})
        read = model.num_tokens(prompt)
        usage = {"prompt_tokens": read, "completion_tokens": count, "total_tokens": read + count}
        await event({"object": "text_completion", "choices": [], "usage": usage})
        await event("[DONE]")
        return response

    app = web.Application()
    app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", completions)])
    app.cleanup_ctx.append(model.work)
    return app


def main() -> None:
    folder, name, port = sys.argv[1:]
    web.run_app(application(Model(folder, name)), host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main()
