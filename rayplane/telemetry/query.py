"""Metrics read back: from Prometheus by HTTP, from an exporter's own page, from a file with such a page, or from a registry.

Prometheus("http://prometheus:9090").instant('rayplane_step{run="a"}')                 GET /api/v1/query
                                    .range('rayplane_loss{run="a"}', 0, 3600, 15)      GET /api/v1/query_range
page("http://node:39211/metrics"), page_in(Path("saved.txt")), of_registry(registry)   newest values only
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from rayplane.errors import RayplaneError

TIMEOUT_S = 10.0
PART_BYTES = 1 << 16
NAME = "__name__"
"""The label that holds a series' name."""


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: its labels, its name among them, and (unix time in seconds, value) in order."""

    labels: Mapping[str, str]
    values: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """The metric; empty where a function has been applied to it."""
        return self.labels.get(NAME, "")

    @property
    def newest(self) -> float:
        """The last value."""
        return self.values[-1][1]


class Prometheus:
    """A Prometheus server's query API (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S):
        """`url`: where the server is, without /api."""
        self._url, self._timeout_s = _checked(url).rstrip("/"), timeout_s

    def instant(self, query: str, at_unix_s: float | None = None) -> tuple[Series, ...]:
        """The value of each series that an expression gives; now, unless it says when."""
        when = {} if at_unix_s is None else {"time": f"{at_unix_s:.3f}"}
        return self._ask("query", {"query": query, **when})

    def range(self, query: str, start_unix_s: float, end_unix_s: float, step_s: float) -> tuple[Series, ...]:
        """The values of each series between two moments, `step_s` apart."""
        span = {"start": f"{start_unix_s:.3f}", "end": f"{end_unix_s:.3f}", "step": f"{step_s:g}"}
        return self._ask("query_range", {"query": query, **span})

    def _ask(self, endpoint: str, parameters: dict[str, str]) -> tuple[Series, ...]:
        text = _get(f"{self._url}/api/v1/{endpoint}?{urlencode(parameters)}", self._timeout_s)
        try:
            answer = json.loads(text)
            if answer["status"] != "success":
                raise RayplaneError(f"{self._url}: {answer.get('errorType', 'error')}: {answer.get('error', 'no reason given')}")
            return tuple(_series(answer["data"]["resultType"], item) for item in answer["data"]["result"])
        except (ValueError, KeyError, TypeError, IndexError):
            raise RayplaneError(f"{self._url} does not answer as Prometheus does; give the URL of the server, without /api") from None


def page(url: str, timeout_s: float = TIMEOUT_S) -> tuple[Series, ...]:
    """What an exporter shows."""
    return _parsed(_get(_checked(url), timeout_s), url)


def page_in(path: Path) -> tuple[Series, ...]:
    """What an exporter showed when its page was saved."""
    try:
        return _parsed(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise RayplaneError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RayplaneError(f"{path} is not text") from None


def of_registry(registry: CollectorRegistry) -> tuple[Series, ...]:
    """What a registry of this process holds."""
    return _flat(registry.collect())


def _parsed(text: str, where: str) -> tuple[Series, ...]:
    try:
        return _flat(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError):
        raise RayplaneError(f"{where} is no page of metrics; save one with `curl http://HOST:PORT/metrics`") from None


def _flat(families: Iterable[Metric]) -> tuple[Series, ...]:
    now = time.time()
    return tuple(
        Series({NAME: sample.name, **sample.labels}, ((now, float(sample.value)),)) for family in families for sample in family.samples
    )


def _series(kind: str, item: Any) -> Series:
    match kind:
        case "vector":
            return Series(item["metric"], (_point(item["value"]),))
        case "matrix":
            return Series(item["metric"], tuple(_point(point) for point in item["values"]))
        case _:
            raise ValueError(f"a result of type {kind} is no series")


def _point(point: Any) -> tuple[float, float]:
    """Values are text, since JSON has no NaN."""
    unix_s, value = point
    return float(unix_s), float(value)


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        known = None
    if not known:
        raise RayplaneError(f"'{url}' is no URL of metrics; write http://HOST:PORT")
    return url


def _get(url: str, timeout_s: float) -> str:
    """The body of an answer; Prometheus explains what is wrong with a query in that of an error."""
    where = url.partition("/api/")[0]
    try:
        with urlopen(Request(url, headers={"Accept": "*/*"}), timeout=timeout_s) as answer:
            return _body(answer, timeout_s)
    except HTTPError as error:
        body = _body(error, timeout_s)
        if body.lstrip().startswith("{"):
            return body
        raise RayplaneError(f"{where} answers {error.code} {error.reason}") from None
    except URLError as error:
        raise RayplaneError(f"{where} cannot be reached: {error.reason}") from None
    except (TimeoutError, OSError):
        raise RayplaneError(f"{where} does not answer within {timeout_s:g} s") from None
    except (HTTPException, ValueError) as error:
        raise RayplaneError(
            f"'{where}' cannot be asked: {error or type(error).__name__}; write http://HOST:PORT of a web server"
        ) from None


def _body(answer: HTTPResponse | HTTPError, timeout_s: float) -> str:
    """All that comes. Raises TimeoutError: a server that sends a little now and then would be listened to for ever."""
    end_s, parts = time.monotonic() + timeout_s, list[bytes]()
    while part := answer.read1(PART_BYTES):
        parts.append(part)
        if time.monotonic() > end_s:
            raise TimeoutError
    return b"".join(parts).decode("utf-8", errors="replace")
