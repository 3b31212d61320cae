"""What an ingress has seen, for Prometheus and for whoever scales the service.

arrived ──placed──▶ started ──▶ first token ──▶ token … token ──▶ ended
   ├── queue time ─────┤              └─ inter-token ─┘             │
   ├── time to first token ───────────┘                             │
   └── end to end ──────────────────────────────────────────────────┘
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rayplane.api.fleet import Fleet
from rayplane.api.traffic import Traffic
from rayplane.telemetry import serve_catalog as catalog
from rayplane.telemetry.catalog import Metric

Labels = tuple[str, ...]
"""Values of a metric's labels after `run`, in the catalog's order."""


class Histogram:
    """Counts by size."""

    def __init__(self, bounds: tuple[float, ...]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def exposed(self) -> tuple[list[tuple[str, float]], float]:
        """([(upper end, how many are at most that)], sum of all)."""
        ends = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return [(end, float(count)) for end, count in zip(ends, accumulate(self._counts), strict=True)], self._sum


class Metrics(Collector):
    """Counters and histograms are added to as requests pass; gauges are read from the fleet when somebody asks."""

    def __init__(self, run: str, fleet: Fleet, clock: Callable[[], float]):
        self.traffic = Traffic(clock)
        self.now = clock
        self._run, self._fleet = run, fleet
        self._counters: dict[Metric, defaultdict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[tuple[Metric, str], Histogram] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)

    def count(self, metric: Metric, labels: Labels, value: float = 1.0) -> None:
        """Add to a counter."""
        self._counters[metric][labels] += value

    def histogram(self, metric: Metric, replica: str) -> Histogram:
        """A replica's histogram."""
        key = (metric, replica)
        if key not in self._histograms:
            self._histograms[key] = Histogram(metric.bounds)
        return self._histograms[key]

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """One family per metric, for prometheus_client to print."""
        values = {**self._counters, **self._of_replicas()}
        for metric in catalog.SERVE_CATALOG:
            if metric.type == "histogram":
                yield self._histogram_family(metric)
                continue
            kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in values.get(metric, {}).items():
                family.add_metric((self._run, *labels), value)
            yield family

    def _histogram_family(self, metric: Metric) -> HistogramMetricFamily:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for (known, replica), histogram in self._histograms.items():
            if known is metric:
                buckets, total = histogram.exposed()
                family.add_metric((self._run, replica), buckets, total)
        return family

    def _of_replicas(self) -> dict[Metric, dict[Labels, float]]:
        out: dict[Metric, dict[Labels, float]] = defaultdict(dict)
        out[catalog.MOVED][()] = self._fleet.moved
        out[catalog.UNPLACED][()] = self._fleet.unplaced
        for replica in self._fleet.replicas:
            who = (replica.id,)
            out[catalog.REPLICA_UP][who] = replica.state == "live"
            if pulse := replica.pulse:
                out[catalog.WAITING][who] = pulse.waiting
                out[catalog.RUNNING][who] = pulse.running
                out[catalog.KV_USAGE][who] = pulse.kv_used / max(1, pulse.kv_tokens)
                out[catalog.PREEMPTIONS][who] = pulse.preemptions
                out[catalog.DRAFTED][who] = pulse.drafted
                out[catalog.ACCEPTED][who] = pulse.accepted
                out[catalog.ENGINE_STEPS][who] = pulse.step
        return out


class Stopwatch:
    """Times one continuation. The replica that gave a token is the one that it is counted for."""

    def __init__(self, metrics: Metrics, prompt_tokens: int, arrived_at: float):
        self._metrics, self._prompt_tokens, self._arrived_at = metrics, prompt_tokens, arrived_at
        self._replica = ""
        self._started = False
        self._last_at = 0.0
        self._tokens = 0
        self._gaps: Histogram | None = None

    def placed(self, replica: str) -> None:
        """A replica has it now."""
        self._replica = replica
        self._gaps = self._metrics.histogram(catalog.INTER_TOKEN_LATENCY, replica)

    def started(self, cached: int) -> None:
        """The replica has begun; only the first one counts."""
        if self._started:
            return
        self._started = True
        metrics, who = self._metrics, (self._replica,)
        waited_s = metrics.now() - self._arrived_at
        metrics.histogram(catalog.QUEUE_TIME, self._replica).observe(waited_s)
        metrics.histogram(catalog.PROMPT_LENGTH, self._replica).observe(self._prompt_tokens)
        metrics.count(catalog.PROMPT_TOKENS, who, self._prompt_tokens)
        metrics.count(catalog.PREFIX_HITS, who, cached)
        metrics.traffic.started(waited_s, self._prompt_tokens, cached)

    def tokens(self, count: int) -> None:
        """So many have come at once."""
        metrics, now = self._metrics, self._metrics.now()
        if not self._tokens:
            first_s = now - self._arrived_at
            metrics.histogram(catalog.TIME_TO_FIRST_TOKEN, self._replica).observe(first_s)
            metrics.traffic.first_token(first_s)
        elif self._gaps:
            gap_s = (now - self._last_at) / count
            self._gaps.observe(gap_s, count)
            metrics.traffic.gap(gap_s, count)
        self._last_at = now
        self._tokens += count

    def ended(self, how: str) -> None:
        """Nothing more comes: stop, length, cancelled, or a status."""
        metrics, who = self._metrics, (self._replica,)
        metrics.count(catalog.REQUESTS, (self._replica, how))
        metrics.count(catalog.OUTPUT_TOKENS, who, self._tokens)
        if how in ("stop", "length"):
            metrics.histogram(catalog.E2E_LATENCY, self._replica).observe(metrics.now() - self._arrived_at)
            metrics.histogram(catalog.OUTPUT_LENGTH, self._replica).observe(self._tokens)
