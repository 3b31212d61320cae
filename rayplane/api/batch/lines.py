"""A line of a batch becomes a request; what is wrong with it is said by field.

{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The sky is", "max_tokens": 8}}      OpenAI's form
{"id": "a", "prompt": "The sky is", "max_tokens": 8}               the same; a line without an id is called by its number: line-7
{"messages": [{"role": "user", "content": "Name a river."}]}       a conversation
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rayplane.api.protocol.requests import ChatRequest, CompletionRequest
from rayplane.api.protocol.sampling import SamplingFields
from rayplane.api.protocol.section import UNSUPPORTED, Section
from rayplane.spec.schema import did_you_mean, shown

Path = Literal["/v1/completions", "/v1/chat/completions"]
COMPLETIONS: Path = "/v1/completions"
CHAT: Path = "/v1/chat/completions"
KINDS: Mapping[Path, type[SamplingFields]] = {COMPLETIONS: CompletionRequest, CHAT: ChatRequest}
MAX_ID = 512
ID_PREFIX = "batch_req_"
ID_DIGITS = 32


class Envelope(Section):
    """A line in OpenAI's form."""

    custom_id: Annotated[str, Field(min_length=1, max_length=MAX_ID)] | None = None
    method: Literal["POST"] = "POST"
    url: Path
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for all lines."""

    model: str
    """What the service calls its model."""
    any_model: bool = False
    """Whether it is asked whatever model a line names."""
    max_tokens: int | None = None
    """For lines that do not say."""
    temperature: float | None = None
    """The same."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request."""

    line: int
    custom_id: str
    path: Path
    body: str
    """JSON as it is sent."""

    @property
    def id(self) -> str:
        """Follows from what is asked, so that a request that has changed is noticed."""
        return ID_PREFIX + hashlib.sha256(f"{self.path}\n{self.body}".encode()).hexdigest()[:ID_DIGITS]


class LineError(Exception):
    """What is wrong with a line."""

    def __init__(self, message: str, field: str = ""):
        self.message, self.field = message, field
        super().__init__(message)


def read_line(raw: bytes, number: int, terms: Terms) -> Ask:
    """The request of a line. LineError names the field at fault."""
    line = _object(raw)
    if line.keys() & {"url", "body", "method"}:
        envelope = _envelope(line)
        given, path, body, prefix = envelope.custom_id, envelope.url, envelope.body, "body."
    else:
        given, path, body = _simple(line)
        prefix = ""
    full = _filled(body, path, terms, prefix)
    text = json.dumps(full, separators=(",", ":"))
    try:
        KINDS[path].model_validate_json(text)
    except ValidationError as error:
        raise _fault(error, KINDS[path], prefix) from None
    return Ask(number, given or f"line-{number}", path, text)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw, parse_constant=_no_number)
    except RecursionError:
        raise LineError("is nested too deeply") from None
    except UnicodeDecodeError:
        raise LineError("is no text in UTF-8; save the file as UTF-8") from None
    except ValueError as error:
        raise LineError(f"is no JSON ({error}); write one object on each line") from None
    if not isinstance(line, dict):
        raise LineError(f"expected an object with prompt or messages, got {shown(line)}")
    return line


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _envelope(line: dict[str, Any]) -> Envelope:
    try:
        return Envelope.model_validate(line)
    except ValidationError as error:
        raise _fault(error, Envelope, "") from None


def _simple(line: dict[str, Any]) -> tuple[str | None, Path, dict[str, Any]]:
    """Its id, where its request goes, and the request."""
    body = {name: value for name, value in line.items() if name != "id"}
    given = line.get("id")
    if isinstance(given, bool | float | list | dict) or given == "" or len(str(given)) > MAX_ID:
        raise LineError(f"expected a text of at most {MAX_ID} characters or a number, got {shown(given)}", "id")
    if "prompt" in body and "messages" in body:
        raise LineError("stands beside prompt; give one of them", "messages")
    if "prompt" not in body and "messages" not in body:
        raise LineError(f"is missing{did_you_mean('prompt', body)}; give prompt or messages", "prompt")
    return (None if given is None else str(given)), CHAT if "messages" in body else COMPLETIONS, body


def _filled(body: dict[str, Any], path: Path, terms: Terms, prefix: str) -> dict[str, Any]:
    """The request with what the command says for all of them."""
    named = body.get("model")
    if named not in (None, terms.model) and not terms.any_model:
        remedy = f"leave it out, or ask {terms.model} whatever lines say with --model {terms.model}"
        raise LineError(f"the service has {terms.model!r}, not {shown(named)}; {remedy}", f"{prefix}model")
    if body.get("stream"):
        raise LineError("answers of a batch come whole; leave it out", f"{prefix}stream")
    full = {**body, "model": terms.model}
    if terms.max_tokens is not None and body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        full["max_tokens"] = terms.max_tokens
    if terms.temperature is not None and body.get("temperature") is None:
        full["temperature"] = terms.temperature
    return full


def _fault(error: ValidationError, kind: type[Section], prefix: str) -> LineError:
    """The first thing that is wrong."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = [str(part) for part in first["loc"]]
    if not place:
        return LineError(_first_lower(first["msg"]), prefix.rstrip("."))
    if first["type"] == "extra_forbidden":
        return LineError(_unknown(place, kind), prefix + ".".join(place))
    if first["type"] == "missing":
        return LineError("is missing; add it", prefix + ".".join(place))
    return LineError(f"{_first_lower(first['msg'])}, got {shown(first['input'])}", prefix + place[0])


def _unknown(place: list[str], kind: type[Section]) -> str:
    if place[-1] in UNSUPPORTED:
        return "is not supported by this server; leave it out"
    near = did_you_mean(place[-1], kind.model_fields) if len(place) == 1 else ""
    return f"is no field of this request{near or '; leave it out'}"


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]
