"""What an ingress has seen can be scraped, and summed up for whoever scales the service."""

import re
from collections import Counter

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from serving import Serving

from rayplane.api.traffic import NUM_SLICES, SLICE_S, Traffic, bucket, quantile
from rayplane.telemetry.catalog import CATALOG, markdown_table
from rayplane.telemetry.serve_catalog import SERVE_CATALOG


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scraped(serving) -> dict[str, dict[tuple, float]]:
    """{sample name: {labels: value}}."""
    out: dict[str, dict[tuple, float]] = {}
    for family in text_string_to_metric_families(serving.service.metrics.text().decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "run"}
            out.setdefault(sample.name, {})[tuple(sorted(labels.items()))] = sample.value
    return out


R0 = (("replica", "r0"),)


def test_a_request_leaves_its_traces(serving):
    client = serving.client()
    client.completions.create(model="m", prompt="hello", max_tokens=10)
    list(client.completions.create(model="m", prompt="hi", max_tokens=5, stream=True))
    serving.until(lambda: serving.service.fleet.replicas[0].pulse.running == 0)
    found = scraped(serving)
    assert found["rayplane_time_to_first_token_seconds_count"][R0] == 2
    assert found["rayplane_inter_token_latency_seconds_count"][R0] == 9 + 4
    assert found["rayplane_e2e_request_latency_seconds_count"][R0] == 2
    assert found["rayplane_request_queue_time_seconds_count"][R0] == 2
    assert found["rayplane_prompt_tokens_total"][R0] == 7
    assert found["rayplane_generation_tokens_total"][R0] == 15
    assert found["rayplane_prefix_cache_hits_total"][R0] == 0
    assert found["rayplane_requests_total"][(("finish", "length"), *R0)] == 2
    assert found["rayplane_http_responses_total"][(("path", "/v1/completions"), ("status", "200"))] == 2
    assert found["rayplane_num_preemptions_total"][R0] == 3
    assert found["rayplane_spec_decode_num_draft_tokens_total"][R0] == 8
    assert found["rayplane_spec_decode_num_accepted_tokens_total"][R0] == 5
    assert found["rayplane_replica_up"][R0] == 1
    assert found["rayplane_num_requests_running"][R0] == 0
    assert found["rayplane_kv_cache_usage_ratio"][R0] == 0
    assert found["rayplane_e2e_request_latency_seconds_sum"][R0] >= found["rayplane_time_to_first_token_seconds_sum"][R0]
    times = [found[f"rayplane_{name}_seconds_bucket"] for name in ("time_to_first_token", "e2e_request_latency")]
    assert all(buckets[(("le", "+Inf"), *R0)] == 2 for buckets in times)


def test_paths_that_lead_nowhere_are_one(serving):
    for i in range(3):
        with pytest.raises(Exception, match="404"):
            serving.client().get(f"/random-{i}", cast_to=object)
    assert scraped(serving)["rayplane_http_responses_total"] == {(("path", "other"), ("status", "404")): 3}


def test_all_metrics_of_the_catalog_are_exported(serving):
    text = serving.service.metrics.text().decode()
    said = set(re.findall(r"^# TYPE (\S+) ", text, flags=re.MULTILINE))
    assert said == {metric.name for metric in SERVE_CATALOG}


def test_the_catalog_keeps_its_rules():
    names = [metric.name for metric in (*CATALOG, *SERVE_CATALOG)]
    assert len(names) == len(set(names))
    for metric in SERVE_CATALOG:
        assert metric.name.startswith("rayplane_")
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert (metric.type == "histogram") == bool(metric.bounds)
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert metric.labels[0] == "run"
        assert not {"job", "instance", "le", "quantile"} & set(metric.labels)
        assert metric.unit != "seconds" or "seconds" in metric.name
    assert len(markdown_table(SERVE_CATALOG).splitlines()) == 2 + len(SERVE_CATALOG)


@given(st.lists(st.floats(1e-4, 100), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_at_most_a_bucket_high(values, share):
    found = quantile(Counter(map(bucket, values)), share)
    exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
    assert exact * (1 - 1e-9) <= found <= exact * 1.05 * (1 + 1e-9)


def test_of_nothing_there_is_no_quantile():
    assert quantile(Counter(), 0.99) is None


def test_the_summary_is_of_the_last_seconds():
    clock = Clock()
    traffic = Traffic(clock)
    for _ in range(10):
        traffic.started(0.1, 50, 20)
        traffic.first_token(0.2)
        traffic.gap(0.02, 4)
        clock.now += 1.0
    told = traffic.summary()
    assert told.window_s == 10
    assert (told.requests_s, told.prompt_tokens_s, told.cached_tokens_s, told.output_tokens_s) == (1.0, 50.0, 20.0, 5.0)
    assert told.ttft_p99_s == pytest.approx(0.2, rel=0.05)
    assert told.itl_p99_s == pytest.approx(0.02, rel=0.05)
    assert told.queue_p99_s == pytest.approx(0.1, rel=0.05)
    clock.now += SLICE_S * NUM_SLICES
    traffic.refused()
    clock.now += 1.0
    told = traffic.summary()
    assert (told.ttft_p99_s, told.requests_s) == (None, 0.0)
    assert told.refused_s == 1.0


def test_old_slices_are_dropped_one_by_one():
    clock = Clock()
    traffic = Traffic(clock)
    for second in range(100):
        traffic.started(0.1 if second < 60 else 0.5, 1)
        clock.now += 1.0
    told = traffic.summary()
    assert told.window_s <= SLICE_S * NUM_SLICES
    assert told.requests_s == pytest.approx(1.0, rel=0.1)


def test_no_label_tells_of_a_cancelled_request_as_finished():
    with Serving(FakeEngine(step_s=0.05)) as serving:
        stream = serving.client().completions.create(model="m", prompt="x", max_tokens=400, stream=True)
        next(stream)
        stream.close()
        serving.until(lambda: not serving.engines[0].live)
        found = scraped(serving)
        assert found["rayplane_requests_total"] == {(("finish", "cancelled"), *R0): 1}
        assert "rayplane_e2e_request_latency_seconds_count" not in found
