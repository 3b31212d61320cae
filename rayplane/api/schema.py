"""The OpenAPI document: FastAPI knows the answers, and is told of the requests, which are read by hand (reading.py)."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from rayplane.api.errors import ErrorBody
from rayplane.api.protocol.requests import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from rayplane.api.protocol.section import Section

BODIES: tuple[type[Section], ...] = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
PLACE = "#/components/schemas/{model}"


def takes(kind: type[Section]) -> dict[str, Any]:
    """What a route says of its body."""
    schema = {"$ref": PLACE.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def fails(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route says of its errors."""
    return {status: {"model": ErrorBody} for status in statuses}


def streams(answer: type) -> dict[int | str, dict[str, Any]]:
    """What a route says of an answer that may be a stream."""
    events: dict[str, dict[str, Any]] = {"text/event-stream": {}}
    return {200: {"model": answer, "description": "The answer, or with `stream` its pieces as server-sent events.", "content": events}}


class DescribedApp(FastAPI):
    """An application whose document also has the bodies."""

    def openapi(self) -> dict[str, Any]:
        """The document."""
        if self.openapi_schema is None:
            document = super().openapi()
            _, bodies = models_json_schema([(kind, "validation") for kind in BODIES], ref_template=PLACE)
            document.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
        return super().openapi()
