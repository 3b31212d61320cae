"""What is done before a request is looked at: who sends it, and is it of a reasonable size?"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from rayplane.api.errors import ApiError, malformed
from rayplane.api.protocol.section import UNSUPPORTED, Section

READ_TIMEOUT_S = 60.0
Body = TypeVar("Body", bound=Section)


def authorised(keys: Sequence[str]) -> Callable[[Request], Awaitable[None]]:
    """A check for one of the keys as a bearer token; takes equally long whichever it is. Without keys everyone may ask."""
    known = [key.encode() for key in keys]

    async def check(request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode() if scheme.lower() == "bearer" else b""
        right = [hmac.compare_digest(given, key) for key in known]
        if known and not any(right):
            message = "give one of the service's API keys as a bearer token" if not given else "this API key is not known"
            raise ApiError(401, message, code="invalid_api_key")

    return check


async def read_body(request: Request, kind: type[Body], max_bytes: int) -> Body:
    """The request's JSON body. ApiError 413, 408, or 400 naming the field at fault."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            body = await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(408, f"the request was not complete after {READ_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the request is not complete") from None
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise malformed(error, UNSUPPORTED) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    size, parts = int(announced) if announced.isdecimal() else 0, []
    if size <= max_bytes:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
    if size > max_bytes:
        raise ApiError(413, f"the request is larger than {max_bytes} bytes; shorten it", code="request_too_large")
    return b"".join(parts)
