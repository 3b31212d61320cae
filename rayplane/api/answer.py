"""Answers as HTTP: whole, or as server-sent events while it is generated.

data: {chunk}⏎⏎ … data: {chunk with usage}⏎⏎ data: [DONE]⏎⏎

The headers of a stream wait for its first token, so that whatever goes wrong before is answered with a status of its own. A reader that
is slower than the text gets fewer and larger chunks: what has come while a chunk was being sent is the next one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rayplane.api.envelope import Form
from rayplane.api.errors import ApiError
from rayplane.api.generation import Generation
from rayplane.api.protocol.responses import PromptTokensDetails, Usage


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer is to come."""

    stream: bool
    include_usage: bool


class Answer(Response):
    """Sends what a generation gives, and ends it when the client has gone."""

    def __init__(self, generation: Generation, form: Form, delivery: Delivery):
        super().__init__()
        self._generation, self._form, self._delivery = generation, form, delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The whole exchange, once the request is read."""
        watching = asyncio.create_task(self._until_gone(receive))
        try:
            if self._delivery.stream:
                await self._stream(send)
            else:
                await self._whole(scope, receive, send)
        finally:
            watching.cancel()
            self._generation.cancel()

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.cancel()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        generation = self._generation
        await generation.finished()
        if generation.gone:
            return
        body = self._form.whole([choice.take() for choice in generation.choices], self._usage())
        await Response(body.model_dump_json(), media_type="application/json")(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        generation = self._generation
        await generation.begun()
        if generation.gone:
            return
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await _send_events(send, self._form.opening())
            while not generation.gone:
                await _send_events(send, self._news())
                if not any(choice.pending or not choice.ended for choice in generation.choices):
                    break
                await generation.changed()
            if generation.gone:
                return
            tail = [self._form.last(self._usage())] if self._delivery.include_usage else []
            await _send_events(send, [*tail, "[DONE]"], more=False)
        except ApiError as error:
            await _send_events(send, [error.body.model_dump_json()], more=False)

    def _news(self) -> list[str]:
        choices = enumerate(self._generation.choices)
        return [self._form.chunk(index, choice.take()) for index, choice in choices if choice.pending]

    def _usage(self) -> Usage:
        prompt, completion = self._generation.prompt_tokens, self._generation.completion_tokens
        details = PromptTokensDetails(cached_tokens=self._generation.cached_tokens)
        return Usage(
            prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion, prompt_tokens_details=details
        )


async def _send_events(send: Send, events: list[str], more: bool = True) -> None:
    if events or not more:
        body = "".join([f"data: {event}\n\n" for event in events]).encode()
        await send({"type": "http.response.body", "body": body, "more_body": more})
