"""The HTTP application of an ingress: routes, what is checked before them, and how their errors look.

request ──▶ Counted ──▶ key? ──▶ Api ──▶ answer            ApiError, 404, 405, a fault of ours ──▶ the error object, with its status
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayplane.api.errors import ApiError
from rayplane.api.metrics import Metrics
from rayplane.api.protocol.requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from rayplane.api.protocol.responses import ChatCompletion, Completion, HealthAnswer
from rayplane.api.reading import authorised
from rayplane.api.routes import Api, Ingress
from rayplane.api.schema import DescribedApp, fails, streams, takes
from rayplane.telemetry import serve_catalog as catalog

READ_ERRORS = (400, 404, 408, 413)
GENERATION_ERRORS = (*READ_ERRORS, 429, 503, 504)
TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
log = logging.getLogger(__name__)


def build_app(ingress: Ingress) -> ASGIApp:
    """The application, with what counts its answers around it."""
    app = DescribedApp(title="rayplane", version="1", docs_url=None, redoc_url=None)
    api = Api(ingress)
    app.include_router(_open_routes(api))
    app.include_router(_guarded_routes(api, ingress.config.api_keys))
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    return Counted(app, ingress.metrics)


def _open_routes(api: Api) -> APIRouter:
    routes = APIRouter()
    routes.add_api_route("/health", api.health, response_model=HealthAnswer, responses={503: {"model": HealthAnswer}})
    routes.add_api_route("/metrics", api.metrics, response_class=Response, responses=TEXT)
    return routes


def _guarded_routes(api: Api, keys: Sequence[str]) -> APIRouter:
    routes = APIRouter(dependencies=[Depends(authorised(keys))], responses=fails(401))
    routes.add_api_route(
        "/v1/completions",
        api.completions,
        methods=["POST"],
        openapi_extra=takes(CompletionRequest),
        responses=streams(Completion) | fails(*GENERATION_ERRORS),
    )
    routes.add_api_route(
        "/v1/chat/completions",
        api.chat,
        methods=["POST"],
        openapi_extra=takes(ChatRequest),
        responses=streams(ChatCompletion) | fails(*GENERATION_ERRORS),
    )
    routes.add_api_route("/v1/models", api.models)
    routes.add_api_route("/v1/models/{name:path}", api.model, responses=fails(404))
    for path, route, kind in (("/tokenize", api.tokenize, TokenizeRequest), ("/detokenize", api.detokenize, DetokenizeRequest)):
        routes.add_api_route(path, route, methods=["POST"], openapi_extra=takes(kind), responses=fails(*READ_ERRORS))
    return routes


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "the handler is for no other"
    return JSONResponse(error.body.model_dump(), error.status, error.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "the handler is for no other"
    what = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not for {request.url.path}"}
    found = ApiError(error.status_code, what.get(error.status_code, str(error.detail)))
    return JSONResponse(found.body.model_dump(), error.status_code, error.headers)


async def _on_fault(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(ApiError(500, "the service has failed with this request; its log says how").body.model_dump(), 500)


class Counted:
    """Counts the application's answers by path and status. Paths that lead nowhere are one."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"])
            await send(message)

        await self._app(scope, receive, counting)

    def _count(self, scope: Scope, status: int) -> None:
        path = getattr(scope.get("route"), "path", "other")
        self._metrics.count(catalog.ANSWERS, (path, str(status)))
        if status in (429, 503):
            self._metrics.traffic.refused()
