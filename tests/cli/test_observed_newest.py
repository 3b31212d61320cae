"""The newest window of a run as a Prometheus server tells it, and what becomes of a job whose server tells nothing or nonsense."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from rayplane.cli.observed import newest
from rayplane.control.outlook import flaw
from rayplane.errors import RayplaneError
from rayplane.spec.layout import Layout
from rayplane.telemetry import catalog

PP2 = Layout(pp=2)


class Answers(BaseHTTPRequestHandler):
    """Says what `series` of the server has for the metric that is asked for."""

    def do_GET(self):
        (query,) = parse_qs(urlsplit(self.path).query)["query"]
        self.server.queries.append(query)
        found = [s for name, s in self.server.series if name in query]
        result = [{"metric": labels, "value": [0, str(value)]} for labels, value in found]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Answers) as running:
        running.series, running.queries = [], []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def grown(steps, **forward_s):
    """By how much counters have grown in the window."""
    out = [(catalog.STEPS.name, ({"run": "a"}, steps))]
    for name, seconds in forward_s.items():
        stage = name.removeprefix("stage")
        place = {"run": "a", "replica": "0", "stage": stage, "rank": stage}
        out += [(catalog.STEP_SECONDS.name, ({**place, "phase": phase}, seconds)) for phase in ("forward", "backward")]
        out.append((catalog.COMM_BYTES.name, ({**place, "axis": "pp"}, 1000)))
    return out


def url(server):
    return f"http://127.0.0.1:{server.server_port}"


def test_what_counters_have_grown_by_becomes_the_mean_step_of_each_rank(server):
    server.series = grown(20, stage0=2.0, stage1=6.0)
    seen = newest(url(server), "a", 60.0)
    assert not flaw(seen, PP2)
    assert [(r.stage, r.phases["forward"], r.comm_bytes["pp"]) for r in seen.ranks] == [(0, 0.1, 50.0), (1, 0.3, 50.0)]
    assert all(query.startswith("increase(rayplane_") and query.endswith('{run="a"}[60s])') for query in server.queries)


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        ([], "no step was finished in the window"),
        (grown(0, stage0=2.0, stage1=2.0), "no step was finished in the window"),
        (grown(float("nan"), stage0=2.0, stage1=2.0), "no step was finished in the window"),
        (grown(20, stage0=2.0), "1 of 2 ranks were seen"),
        (grown(20, stage0=2.0, stage1=float("nan")), "rank 1: forward is nan"),
        (grown(20, stage0=2.0, stage1=0.0), "rank 1: backward is 0"),
    ],
)
def test_what_is_missing_or_no_number_is_a_flaw(server, series, reason):
    server.series = series
    assert flaw(newest(url(server), "a", 60.0), PP2) == reason


def test_a_server_that_is_gone_is_named():
    with pytest.raises(RayplaneError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        newest("http://127.0.0.1:9", "a", 60.0)
