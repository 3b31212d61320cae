"""A real Prometheus, where one is installed: what an exporter has counted comes back as windows of a job's steps."""

import shutil
import socket
import subprocess
import time

import pytest

from rayplane.cli import observed
from rayplane.errors import RayplaneError
from rayplane.spec.report import StepReport
from rayplane.telemetry.export import Exporter
from rayplane.telemetry.query import Prometheus

STARTS_S, SCRAPES_S = 20, 8
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: rayplane
  static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (apt-get install prometheus)")


@pytest.fixture
def exporter():
    running = Exporter("demo", 0)
    yield running
    running.close()


@pytest.fixture
def server(exporter, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(port=exporter.port))
    command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"http://{address}"
    process.terminate()
    process.wait(10)


def test_windows_hold_the_mean_step_of_each_rank(exporter, server, monkeypatch):
    monkeypatch.setattr(observed, "EVERY_S", 5)
    phases = {"forward": 0.1, "backward": 0.2, "tp": 0.05}
    until = time.monotonic() + SCRAPES_S + STARTS_S
    windows = []
    step = 0
    while not windows and time.monotonic() < until:
        step += 1
        for rank in (0, 1):
            exporter.observe(StepReport(rank, 0, 0, step, 2.0, 1.0, 1e-3, 64, 0.35, phases, {"tp": 100}))
        time.sleep(0.2)
        if step > SCRAPES_S / 0.2:
            windows = [w for w in _windows(server) if len(w.ranks) == 2]
    newest = windows[-1]
    assert newest.ranks[1].phases == pytest.approx(phases, rel=0.01)
    assert newest.ranks[0].comm_bytes == pytest.approx({"tp": 100}, rel=0.01)
    (loss,) = Prometheus(server).instant('rayplane_loss{run="demo"}')
    assert loss.newest == 2.0


def _windows(server):
    try:
        return observed.observe([server], "demo")
    except RayplaneError:
        return []
