"""What each route of the API does.

POST /v1/completions  /v1/chat/completions  /tokenize  /detokenize        GET /v1/models  /health  /metrics  /openapi.json
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from rayplane.api.answer import Answer, Delivery
from rayplane.api.chat import ChatForm
from rayplane.api.completion import CompletionForm
from rayplane.api.config import ServerConfig
from rayplane.api.envelope import Form, new_envelope
from rayplane.api.errors import ApiError, invalid
from rayplane.api.fleet import Fleet
from rayplane.api.generation import Generation, Terms, Wanted
from rayplane.api.metrics import Metrics
from rayplane.api.orders import Orders
from rayplane.api.protocol.requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from rayplane.api.protocol.responses import DetokenizeAnswer, HealthAnswer, ModelCard, ModelList, ReplicaHealth, TokenizeAnswer
from rayplane.api.protocol.sampling import SamplingFields
from rayplane.api.reading import Body, read_body
from rayplane.api.replicas import Replica

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SESSION_HEADER = "x-session-id"
MAX_SESSION = 512


@dataclass(frozen=True, slots=True)
class Ingress:
    """All that the routes work with."""

    config: ServerConfig
    orders: Orders
    fleet: Fleet
    metrics: Metrics
    started_at: int
    """In s since 1970."""


class Api:
    """What the routes do."""

    def __init__(self, ingress: Ingress):
        self._config, self._orders, self._fleet = ingress.config, ingress.orders, ingress.fleet
        self._metrics, self._started_at = ingress.metrics, ingress.started_at

    async def completions(self, request: Request) -> Response:
        """Continue texts."""
        body = await self._read(request, CompletionRequest)
        self._check_model(body.model)
        arrived_at = self._metrics.now()
        wanted, echo = await self._orders.completion(body)
        skip = body.skip_special_tokens is not False
        form = CompletionForm(new_envelope("cmpl", self._config.model), self._orders.tokenizer, echo, skip)
        return self._answer(request, body, arrived_at, wanted, form)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await self._read(request, ChatRequest)
        self._check_model(body.model)
        arrived_at = self._metrics.now()
        wanted = await self._orders.chat(body)
        form = ChatForm(new_envelope("chatcmpl", self._config.model), self._orders.tokenizer, len(wanted))
        return self._answer(request, body, arrived_at, wanted, form)

    async def models(self) -> ModelList:
        """The model that is served."""
        return ModelList(data=[self._card()])

    async def model(self, name: str) -> ModelCard:
        """The model of that name."""
        self._check_model(name)
        return self._card()

    async def tokenize(self, request: Request) -> TokenizeAnswer:
        """Token ids of a text or a conversation."""
        body = await self._read(request, TokenizeRequest)
        self._check_model(body.model)
        tokens = await self._orders.tokens(body)
        return TokenizeAnswer(count=len(tokens), max_model_len=self._config.max_context, tokens=list(tokens))

    async def detokenize(self, request: Request) -> DetokenizeAnswer:
        """The text of token ids."""
        body = await self._read(request, DetokenizeRequest)
        self._check_model(body.model)
        vocab = self._orders.tokenizer.vocab
        if (beyond := max(body.tokens, default=0)) >= vocab:
            raise invalid("tokens", f"{beyond} is no token; ids are below {vocab}")
        return DetokenizeAnswer(prompt=self._orders.tokenizer.decode(body.tokens, skip_special=False))

    async def health(self) -> Response:
        """200 while requests are served, else 503; with the state of each replica."""
        status = "draining" if self._fleet.closing else "ok" if self._fleet.live else "no replica"
        answer = HealthAnswer(status=status, replicas=[_health(replica) for replica in self._fleet.replicas])
        return Response(answer.model_dump_json(), 200 if status == "ok" else 503, media_type="application/json")

    async def metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(self._metrics.text(), media_type=METRICS_TYPE)

    def _answer(self, request: Request, body: SamplingFields, arrived_at: float, wanted: list[Wanted], form: Form) -> Answer:
        session = request.headers.get(SESSION_HEADER, "")[:MAX_SESSION] or body.session
        terms = Terms(body.priority or 0, session, body.cache_salt or "", arrived_at, self._config.deadline_s)
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        return Answer(Generation(wanted, terms, self._fleet, self._metrics), form, Delivery(bool(body.stream), include_usage))

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        return await read_body(request, kind, self._config.max_body_bytes)

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._config.model):
            raise ApiError(
                404, f"model: there is no {name!r:.100}; this service has {self._config.model!r}", "model", "model_not_found"
            )

    def _card(self) -> ModelCard:
        return ModelCard(id=self._config.model, created=self._started_at, max_model_len=self._config.max_context)


def _health(replica: Replica) -> ReplicaHealth:
    pulse = replica.pulse
    if pulse is None:
        return ReplicaHealth(id=replica.id, state=replica.state, reason=replica.reason)
    usage = pulse.kv_used / max(1, pulse.kv_tokens)
    return ReplicaHealth(id=replica.id, state=replica.state, running=pulse.running, waiting=pulse.waiting, kv_usage=usage)
