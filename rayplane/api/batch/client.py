"""A service over HTTP, seen from whoever asks it.

post ──▶ Reply | Lost            look ──▶ Seen | None            models ──▶ names
"""

from __future__ import annotations

import math
import socket
from types import TracebackType
from typing import Any, Self

import httpx2

from rayplane.api.batch.lines import Ask
from rayplane.api.batch.pace import Seen
from rayplane.api.batch.verdict import Lost, Reply
from rayplane.errors import RayplaneError

CONNECT_S = 10.0
LOOK_S = 10.0
KEEP_OPEN_S = 30.0
"""Below the time after which a service closes a connection that nobody uses."""
LIVENESS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
"""An answer may take as long as it takes, but a machine that is gone must be noticed."""


class Client:
    """Asks one service. `async with`."""

    def __init__(self, url: str, api_key: str = "", transport: httpx2.AsyncBaseTransport | None = None):
        """RayplaneError where the URL is none."""
        self.url = root_of(url)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_OPEN_S)
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            transport=transport or httpx2.AsyncHTTPTransport(limits=limits, socket_options=LIVENESS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._http.aclose()

    async def post(self, ask: Ask) -> Reply | Lost:
        """What comes back for a request."""
        try:
            answer = await self._http.post(ask.path, content=ask.body, headers={"Content-Type": "application/json"})
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return Lost(f"nobody listens there ({_reason(error)})", sent=False)
        except httpx2.HTTPError as error:
            return Lost(f"the connection broke ({_reason(error)})", sent=True)
        headers = answer.headers
        return Reply(answer.status_code, answer.content, _seconds(headers.get("retry-after")), headers.get("x-request-id", ""))

    async def look(self) -> Seen | None:
        """How the service stands; None where it does not say, or has nobody to serve."""
        try:
            answer = await self._http.get("/health", timeout=LOOK_S)
            return _seen(answer.json()) if answer.status_code == httpx2.codes.OK else None
        except (httpx2.HTTPError, ValueError, TypeError, KeyError, AttributeError):
            return None

    async def models(self) -> list[str]:
        """Names of what it serves. RayplaneError where it does not say, or does not let us in."""
        try:
            answer = await self._http.get("/v1/models", timeout=LOOK_S)
        except httpx2.HTTPError as error:
            raise RayplaneError(f"{self.url} does not answer ({_reason(error)}); is the service there?") from None
        if answer.status_code in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            raise RayplaneError(f"{self.url} wants one of its API keys; give a file with it: --api-key-file FILE")
        try:
            return [str(model["id"]) for model in answer.json()["data"]]
        except (ValueError, TypeError, KeyError):
            raise RayplaneError(f"{self.url} is no service of OpenAI's form: /v1/models gives {answer.status_code}") from None


def root_of(url: str) -> str:
    """The service's own address; whoever copies it from elsewhere may have /v1 behind it."""
    try:
        known = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise RayplaneError(f"--url {url}: {error}") from None
    if known.scheme not in ("http", "https") or not known.host:
        raise RayplaneError(f"--url {url}: expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _seen(health: dict[str, Any]) -> Seen:
    live = [replica for replica in health["replicas"] if replica["state"] == "live"]
    return Seen(len(live), sum(int(r["running"]) for r in live), sum(int(r["waiting"]) for r in live))


def _seconds(header: str | None) -> float | None:
    """Of Retry-After, where it says seconds."""
    try:
        seconds = float(header) if header else math.nan
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
