"""What ranks report is what Prometheus scrapes."""

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rayplane.errors import RayplaneError
from rayplane.spec.report import PHASES, ServedReport, StepReport
from rayplane.telemetry.catalog import CATALOG
from rayplane.telemetry.export import Exporter, write_targets

REPORT = StepReport(
    rank=0,
    replica=0,
    stage=0,
    step=7,
    loss=2.5,
    grad_norm=1.25,
    lr=3e-3,
    tokens=4096,
    wall_s=0.9,
    phases=dict.fromkeys(PHASES, 0.1),
    comm_bytes={"pp": 1000, "dp": 500},
    memory_bytes=1 << 30,
)

OTHER = replace(REPORT, rank=1, stage=1, wall_s=1.0, memory_bytes=1 << 20)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter("quickstart", 0)
    yield exporter
    exporter.close()


def families(exporter: Exporter) -> list[Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
        return list(text_string_to_metric_families(answer.read().decode()))


def scrape(exporter: Exporter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels, `run` left out."""
    samples = [s for f in families(exporter) for s in f.samples]
    assert {s.labels["run"] for s in samples} == {"quickstart"}
    return {(s.name, frozenset((k, v) for k, v in s.labels.items() if k != "run")): s.value for s in samples}


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def test_where_a_serving_ranks_time_goes_is_counted_like_a_training_ones(exporter: Exporter) -> None:
    for _ in range(2):
        exporter.observe(ServedReport(1, "7", 1, 40, 900, 1.0, {"forward": 0.75, "recv_wait": 0.25}, {"pp": 1000}))
    values = scrape(exporter)
    who = {"rank": "1", "replica": "7", "stage": "1"}
    assert values["rayplane_step_seconds_total", labels(**who, phase="forward")] == 1.5
    assert values["rayplane_comm_bytes_total", labels(**who, axis="pp")] == 2000
    assert values["rayplane_steps_total", labels()] == 0  # those are of training


def test_two_steps_of_two_ranks_are_scraped_with_the_right_values(exporter: Exporter) -> None:
    for step in (7, 8):
        exporter.observe(replace(REPORT, step=step))
        exporter.observe(replace(OTHER, step=step))
    exporter.saved()
    values = scrape(exporter)
    first, second = {"replica": "0", "stage": "0", "rank": "0"}, {"replica": "0", "stage": "1", "rank": "1"}
    for phase in PHASES:
        assert values["rayplane_step_seconds_total", labels(**second, phase=phase)] == pytest.approx(0.2)
    assert values["rayplane_comm_bytes_total", labels(**first, axis="pp")] == 2000
    assert values["rayplane_memory_peak_bytes", labels(**second)] == 1 << 20
    assert values["rayplane_step_measured_seconds", labels(**second)] == 1.0
    whole_job = {"step": 8, "steps_total": 2, "tokens_total": 8192, "loss": 2.5, "grad_norm": 1.25, "learning_rate": 3e-3}
    for name, value in (whole_job | {"checkpoints_total": 1, "restarts_total": 0}).items():
        assert values[f"rayplane_{name}", labels()] == value


def test_values_of_the_whole_job_come_from_rank_0_alone(exporter: Exporter) -> None:
    exporter.observe(OTHER)
    values = scrape(exporter)
    assert values["rayplane_steps_total", labels()] == 0
    assert ("rayplane_loss", labels()) not in values


def test_the_catalog_names_exactly_what_is_exported(exporter: Exporter) -> None:
    exporter.observe(REPORT)
    exporter.set_state("running")
    exporter.set_predicted(0.8)
    found = {s.name: (f.type, set(s.labels), f.documentation) for f in families(exporter) for s in f.samples}
    assert found == {m.name: (m.type, set(m.labels), m.help) for m in CATALOG}


def test_a_job_is_in_one_state_at_a_time(exporter: Exporter) -> None:
    for state in ("pending", "running", "running", "done"):
        exporter.set_state(state)
    states = {dict(k)["state"]: v for (name, k), v in scrape(exporter).items() if name == "rayplane_job_state"}
    assert states == {"pending": 0, "running": 0, "done": 1}


def test_a_restart_is_counted_and_forgets_the_gauges_of_ranks_that_may_be_gone(exporter: Exporter) -> None:
    exporter.observe(REPORT)
    exporter.observe(OTHER)
    exporter.restarted()
    gone = {"step", "loss", "grad_norm", "learning_rate", "memory_peak_bytes", "step_measured_seconds"}
    assert not {f"rayplane_{name}" for name in gone} & {name for name, _ in scrape(exporter)}
    exporter.observe(replace(REPORT, stage=3))
    values = scrape(exporter)
    assert values["rayplane_restarts_total", labels()] == 1
    assert values["rayplane_steps_total", labels()] == 2
    assert [dict(k)["stage"] for name, k in values if name == "rayplane_memory_peak_bytes"] == ["3"]


def test_a_rank_that_moves_to_another_stage_is_reported_there(exporter: Exporter) -> None:
    exporter.observe(REPORT)
    exporter.observe(replace(REPORT, stage=1))
    keys = [dict(k) for name, k in scrape(exporter) if name in ("rayplane_memory_peak_bytes", "rayplane_step_measured_seconds")]
    assert keys == [{"replica": "0", "stage": "1", "rank": "0"}] * 2


def test_scrapes_do_not_disturb_a_writer_that_adds_labels(exporter: Exporter) -> None:
    failures: list[BaseException] = []

    def scrapes() -> None:
        try:
            for _ in range(10):
                scrape(exporter)
        except BaseException as e:
            failures.append(e)

    thread = Thread(target=scrapes)
    thread.start()
    rank = 0
    while thread.is_alive():
        exporter.observe(replace(OTHER, rank=rank % 40))
        rank += 1
    thread.join()
    assert not failures


def test_one_observation_costs_microseconds(exporter: Exporter, capsys: pytest.CaptureFixture[str]) -> None:
    count = 2000
    began = time.perf_counter()
    for _ in range(count):
        exporter.observe(REPORT)
    cost_us = (time.perf_counter() - began) / count * 1e6
    with capsys.disabled():
        print(f" observe: {cost_us:.1f} us ", end="")
    assert cost_us < 100


def test_a_port_in_use_is_named_with_a_remedy(exporter: Exporter) -> None:
    with pytest.raises(RayplaneError) as e:
        Exporter("other", exporter.port)
    assert str(e.value) == f"metrics.port: port {exporter.port} is in use; choose another, or 0 for a free one"


def test_a_closed_exporter_gives_its_port_back_and_may_be_closed_again() -> None:
    exporter = Exporter("quickstart", 0)
    exporter.close()
    exporter.close()
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", exporter.port)) != 0


def test_targets_are_written_for_file_sd_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "sd" / "rayplane.json"
    write_targets(path, ["10.0.0.4:39211", "10.0.0.5:40112"])
    before = path.read_text()
    with path.open() as reader:
        write_targets(path, ["10.0.0.4:39211"])
        assert reader.read() == before, "who has it open reads the old list to its end"
    assert json.loads(path.read_text()) == [{"targets": ["10.0.0.4:39211"], "labels": {}}]
    assert [p.name for p in path.parent.iterdir()] == ["rayplane.json"]
