"""Reports of ranks become metrics that Prometheus scrapes.

observe(report) ──▶ a slot of a dict per value ──▶ GET /metrics   (text is made only when somebody asks)
write_targets(path, ["10.0.0.4:39211", …])   tells Prometheus' file_sd where to ask
"""

from __future__ import annotations

import errno
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rayplane.errors import RayplaneError
from rayplane.spec.report import ServedReport, StepReport
from rayplane.telemetry import catalog
from rayplane.telemetry.catalog import CATALOG, Metric

Labels = tuple[str, ...]
"""Values of a metric's labels after `run`, in the catalog's order."""

CLOSE_TIMEOUT_S = 5.0


class Exporter:
    """The metrics of one run, served on a port until closed. One thread observes ranks, one tells of the job; scrapes come any time."""

    def __init__(self, run: str, port: int):
        """`port` 0 takes a free one. Raises RayplaneError when the port cannot be had."""
        self._values = _Values(run)
        registry = CollectorRegistry()
        registry.register(self._values)
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError as e:
            reason = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be had ({e.strerror})"
            raise RayplaneError(f"metrics.port: port {port} {reason}; choose another, or 0 for a free one") from None
        self.port: int = self._server.server_port
        self._ranks: dict[int, tuple[tuple[int, int], Labels]] = {}
        self._state = ""

    def observe(self, report: StepReport | ServedReport) -> None:
        """Count what one rank has done."""
        if isinstance(report, ServedReport):
            self._count(report, (report.replica, str(report.stage), str(report.rank)))
            return
        place = (report.replica, report.stage)
        known, who = self._ranks.get(report.rank, (None, ()))
        if known != place:
            self._forget(who)
            who = (str(report.replica), str(report.stage), str(report.rank))
            self._ranks[report.rank] = (place, who)
        self._count(report, who)
        values = self._values.of
        values[catalog.STEP_MEASURED][who] = report.wall_s
        values[catalog.MEMORY_PEAK][who] = report.memory_bytes
        if report.rank == 0:
            self._observe_job(report)

    def _count(self, report: StepReport | ServedReport, who: Labels) -> None:
        seconds, sent = self._values.of[catalog.STEP_SECONDS], self._values.of[catalog.COMM_BYTES]
        for phase, value in report.phases.items():
            seconds[*who, phase] += value
        for axis, nbytes in report.comm_bytes.items():
            sent[*who, axis] += nbytes

    def _observe_job(self, report: StepReport) -> None:
        values = self._values.of
        values[catalog.STEP][()] = report.step
        values[catalog.STEPS][()] += 1
        values[catalog.TOKENS][()] += report.tokens
        values[catalog.LOSS][()] = report.loss
        values[catalog.GRAD_NORM][()] = report.grad_norm
        values[catalog.LEARNING_RATE][()] = report.lr

    def set_state(self, name: str) -> None:
        """The job is in this state now."""
        if self._state:
            self._values.of[catalog.JOB_STATE][self._state,] = 0
        self._values.of[catalog.JOB_STATE][name,] = 1
        self._state = name

    def set_predicted(self, step_s: float) -> None:
        """What the planner expects of a step in the current layout."""
        self._values.of[catalog.STEP_PREDICTED][()] = step_s

    def saved(self) -> None:
        """A checkpoint is complete."""
        self._values.of[catalog.CHECKPOINTS][()] += 1

    def restarted(self) -> None:
        """All ranks are started anew after a failure."""
        self._values.of[catalog.RESTARTS][()] += 1
        self.forget_ranks()

    def forget_ranks(self) -> None:
        """Drop what ranks said last: there may be fewer of them from now on, and elsewhere."""
        for _, who in self._ranks.values():
            self._forget(who)
        self._ranks.clear()
        for metric in (catalog.STEP, catalog.LOSS, catalog.GRAD_NORM, catalog.LEARNING_RATE):
            self._values.of[metric].pop((), None)

    def _forget(self, who: Labels) -> None:
        """Drop the gauges of a rank that is no longer at this place."""
        for metric in (catalog.STEP_MEASURED, catalog.MEMORY_PEAK):
            self._values.of[metric].pop(who, None)

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(CLOSE_TIMEOUT_S)


class _Values(Collector):
    """The newest value of every metric by its labels. Counters start at 0, and gauges when first set."""

    def __init__(self, run: str):
        self.run = run
        self.of: dict[Metric, defaultdict[Labels, float]] = {m: defaultdict(float) for m in CATALOG}
        for metric in CATALOG:
            if metric.type == "counter" and metric.labels == catalog.JOB:
                self.of[metric][()] = 0.0

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """One family per metric, for prometheus_client to print."""
        for metric, values in self.of.items():
            kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            # A copy is one step of the interpreter: the writer may add labels while this thread walks.
            for labels, value in values.copy().items():
                family.add_metric((self.run, *labels), value)
            yield family


def write_targets(path: Path, targets: Sequence[str]) -> None:
    """Write `host:port` targets as a Prometheus file_sd file. It is renamed into place: Prometheus never reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    aside.write_text(json.dumps([{"targets": list(targets), "labels": {}}], indent=1) + "\n", encoding="utf-8")
    aside.replace(path)
