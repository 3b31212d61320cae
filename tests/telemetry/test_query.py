"""Metrics are read back as they were exported; what is no Prometheus says so in a sentence."""

import contextlib
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client import CollectorRegistry, Gauge

from rayplane.errors import RayplaneError
from rayplane.spec.report import StepReport
from rayplane.telemetry.export import Exporter
from rayplane.telemetry.query import Prometheus, of_registry, page, page_in

VECTOR = {
    "status": "success",
    "data": {
        "resultType": "vector",
        "result": [
            {"metric": {"__name__": "up", "job": "prometheus", "instance": "localhost:9090"}, "value": [1435781451.781, "1"]},
            {"metric": {"__name__": "up", "job": "node", "instance": "localhost:9100"}, "value": [1435781451.781, "NaN"]},
        ],
    },
}
"""From the documentation of Prometheus, "HTTP API", "Instant queries"; the second value is NaN here."""
MATRIX = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": "up", "job": "prometheus", "instance": "localhost:9090"},
                "values": [[1435781430.781, "1"], [1435781445.781, "1"], [1435781460.781, "0"]],
            }
        ],
    },
}
"""The same, "Range queries"."""
BAD_QUERY = {
    "status": "error",
    "errorType": "bad_data",
    "error": 'invalid parameter "query": 1:3: parse error: unclosed left parenthesis',
}


@pytest.fixture
def server():
    """Answers in Prometheus' format; keeps what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            parameters = {name: values[0] for name, values in parse_qs(url.query).items()}
            asked.append((url.path, parameters))
            known = {"/api/v1/query": VECTOR, "/api/v1/query_range": MATRIX}.get(url.path)
            code = 404 if known is None else 400 if "(" in parameters["query"] else 200
            body = b"404 page not found" if known is None else json.dumps(BAD_QUERY if code == 400 else known).encode()
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", asked
    http.shutdown()
    thread.join()
    http.server_close()


def test_an_instant_query_gives_the_newest_values(server):
    url, asked = server
    first, second = Prometheus(url).instant("up", at_unix_s=1435781451.781)
    assert (first.name, first.labels["instance"], first.newest) == ("up", "localhost:9090", 1.0)
    assert math.isnan(second.newest)
    assert asked == [("/api/v1/query", {"query": "up", "time": "1435781451.781"})]


def test_a_range_query_gives_values_over_time(server):
    url, asked = server
    (series,) = Prometheus(f"{url}/").range("up", 1435781430.781, 1435781460.781, 15)
    assert series.values == ((1435781430.781, 1.0), (1435781445.781, 1.0), (1435781460.781, 0.0))
    assert asked == [("/api/v1/query_range", {"query": "up", "start": "1435781430.781", "end": "1435781460.781", "step": "15"})]


def test_what_prometheus_finds_wrong_is_said(server):
    with pytest.raises(RayplaneError, match='bad_data: invalid parameter "query": 1:3: parse error'):
        Prometheus(server[0]).instant("up(")


def test_what_is_no_prometheus_is_said(server):
    url, _ = server
    with pytest.raises(RayplaneError, match="answers 404"):
        Prometheus(f"{url}/elsewhere").instant("up")
    with pytest.raises(RayplaneError, match=r"cannot be reached: .*refused"):
        Prometheus("http://127.0.0.1:9").instant("up")
    for wrong in ("prometheus:9090", "ftp://prometheus", "http://", "up", "http://[", "http://:9090"):
        with pytest.raises(RayplaneError, match="is no URL of metrics; write http://HOST:PORT"):
            Prometheus(wrong)


def test_what_is_no_address_is_said_without_asking():
    for wrong in ("http://\u2603.invalid", "http://127.0.0.1:many", "http://two words"):
        with pytest.raises(RayplaneError, match=r"cannot be asked|cannot be reached"):
            Prometheus(wrong).instant("up")


class Babble(BaseHTTPRequestHandler):
    """Sends a line now and then, and never ends; or no HTTP at all."""

    def do_GET(self):
        if self.path.startswith("/odd"):
            self.wfile.write(b"\x00\x01 what?\r\n\r\n")
            return
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"#\n")
                time.sleep(0.05)

    def log_message(self, *_):
        pass


def test_a_server_that_never_ends_or_speaks_something_else_is_left():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Babble)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(RayplaneError, match=r"does not answer within 0\.3 s"):
            page(f"{url}/metrics", timeout_s=0.3)
        with pytest.raises(RayplaneError, match=r"cannot be asked: .*what"):
            page(f"{url}/odd", timeout_s=3)
    finally:
        server.shutdown()
        server.server_close()


def test_an_answer_of_another_kind_is_no_answer(server, monkeypatch):
    url, _ = server
    for body in (
        "<html>",
        "[]",
        '{"status": "success"}',
        '{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}',
    ):
        monkeypatch.setattr("rayplane.telemetry.query._get", lambda url, timeout_s, body=body: body)
        with pytest.raises(RayplaneError, match="does not answer as Prometheus does"):
            Prometheus(url).instant("up")


def test_an_exporters_page_says_what_it_was_told(tmp_path):
    exporter = Exporter("demo", 0)
    exporter.observe(StepReport(0, 0, 1, 1, 2.5, 1.0, 1e-3, 64, 3.0, {"forward": 1.0, "tp": 2.0}, {"tp": 4096}))
    try:
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        shown = {(s.name, s.labels.get("phase")): s for s in page(url)}
        assert shown["rayplane_step_seconds_total", "tp"].newest == 2.0
        assert shown["rayplane_step_seconds_total", "tp"].labels["stage"] == "1"
        assert shown["rayplane_steps_total", None].newest == 1.0
    finally:
        exporter.close()
    path = tmp_path / "saved.txt"
    path.write_text('rayplane_loss{run="demo"} NaN\n# a comment\nrayplane_steps_total{run="demo"} 7\n')
    loss, steps = page_in(path)
    assert math.isnan(loss.newest)
    assert (steps.name, steps.newest, steps.labels["run"]) == ("rayplane_steps_total", 7.0, "demo")


def test_a_registry_of_this_process_can_be_read():
    registry = CollectorRegistry()
    Gauge("rayplane_loss", "Loss.", ["run"], registry=registry).labels("demo").set(2.5)
    (series,) = of_registry(registry)
    assert (series.name, series.labels["run"], series.newest) == ("rayplane_loss", "demo", 2.5)


def test_files_that_are_no_page_are_errors(tmp_path):
    (tmp_path / "prose.txt").write_text("this is { not a page\n")
    with pytest.raises(RayplaneError, match=r"prose\.txt is no page of metrics; save one with `curl"):
        page_in(tmp_path / "prose.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RayplaneError, match="is not text"):
        page_in(tmp_path / "binary")
    with pytest.raises(RayplaneError, match="cannot be read: No such file"):
        page_in(tmp_path / "absent")
