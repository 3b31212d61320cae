"""What a request gets instead of an answer: the error object of OpenAI's API, with a status.

{"error": {"message": "prompt: 5000 tokens and 16 to generate; …", "type": "invalid_request_error", "param": "prompt", "code": null}}
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from rayplane.errors import RequestError

TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""`error.type` by status."""


class ErrorObject(BaseModel):
    """What is wrong with a request, or with the service."""

    model_config = ConfigDict(frozen=True)

    message: str
    type: str
    param: str | None = None
    """The field at fault."""
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is none."""

    model_config = ConfigDict(frozen=True)

    error: ErrorObject


class ApiError(Exception):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, retry_after_s: int | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"

    @property
    def body(self) -> ErrorBody:
        """The error object."""
        kind = TYPES.get(self.status, TYPES[400 if self.status < 500 else 500])
        return ErrorBody(error=ErrorObject(message=self.message, type=kind, param=self.param, code=self.code))


def invalid(param: str, message: str) -> ApiError:
    """400 for a field that makes no sense."""
    return ApiError(400, f"{param}: {message}", param)


def refused(error: RequestError) -> ApiError:
    """400 for what the sampling parameters themselves do not take."""
    return ApiError(400, str(error), error.field)


def malformed(error: ValidationError, unsupported: frozenset[str]) -> ApiError:
    """400 for a body that is not the request's schema, naming the first field at fault. `unsupported`: known, not served."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = [str(part) for part in first["loc"]]
    if not place:
        return ApiError(400, f"body: {_sentence(first['msg'])}")
    if first["type"] == "extra_forbidden":
        known = place[-1] in unsupported
        return invalid(".".join(place), "is not supported by this server; leave it out" if known else "is no field of this request")
    return invalid(place[0], _sentence(first["msg"]))


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:]
