"""The metrics of a service, with the names that dashboards of other engines know, and `rayplane_` before them.

Each ingress exports what it has seen: sum counters and buckets over the scraped ports. Gauges of a replica are its own figures, the
same at every ingress.
"""

from __future__ import annotations

from rayplane.telemetry.catalog import JOB, Metric

REPLICA = (*JOB, "replica")

LATENCY_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
TOKEN_GAP_BOUNDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BOUNDS = tuple(float(2**n) for n in range(18))

TIME_TO_FIRST_TOKEN = Metric(
    "rayplane_time_to_first_token_seconds",
    "histogram",
    "seconds",
    REPLICA,
    "From a request's arrival at the ingress to its first token.",
    LATENCY_BOUNDS,
)
INTER_TOKEN_LATENCY = Metric(
    "rayplane_inter_token_latency_seconds", "histogram", "seconds", REPLICA, "Between a request's tokens.", TOKEN_GAP_BOUNDS
)
E2E_LATENCY = Metric(
    "rayplane_e2e_request_latency_seconds",
    "histogram",
    "seconds",
    REPLICA,
    "From a request's arrival at the ingress to its last token.",
    LATENCY_BOUNDS,
)
QUEUE_TIME = Metric(
    "rayplane_request_queue_time_seconds",
    "histogram",
    "seconds",
    REPLICA,
    "From a request's arrival at the ingress to its admission by a replica.",
    LATENCY_BOUNDS,
)
PROMPT_LENGTH = Metric("rayplane_request_prompt_tokens", "histogram", "tokens", REPLICA, "Tokens of a prompt.", TOKEN_BOUNDS)
OUTPUT_LENGTH = Metric("rayplane_request_generation_tokens", "histogram", "tokens", REPLICA, "Tokens of an answer.", TOKEN_BOUNDS)
REQUESTS = Metric("rayplane_requests_total", "counter", "requests", (*REPLICA, "finish"), "Answers that ended, by how.")
ANSWERS = Metric("rayplane_http_responses_total", "counter", "responses", (*JOB, "path", "status"), "HTTP responses.")
MOVED = Metric("rayplane_requests_moved_total", "counter", "requests", JOB, "Requests that went on at another replica.")
PROMPT_TOKENS = Metric("rayplane_prompt_tokens_total", "counter", "tokens", REPLICA, "Tokens of prompts that were admitted.")
OUTPUT_TOKENS = Metric("rayplane_generation_tokens_total", "counter", "tokens", REPLICA, "Tokens generated.")
PREFIX_HITS = Metric("rayplane_prefix_cache_hits_total", "counter", "tokens", REPLICA, "Tokens of prompts that the prefix cache had.")
WAITING = Metric("rayplane_num_requests_waiting", "gauge", "requests", REPLICA, "Requests that wait in a replica.")
RUNNING = Metric("rayplane_num_requests_running", "gauge", "requests", REPLICA, "Requests that a replica computes.")
UNPLACED = Metric("rayplane_num_requests_unplaced", "gauge", "requests", JOB, "Requests at the ingress that wait for a replica.")
KV_USAGE = Metric("rayplane_kv_cache_usage_ratio", "gauge", "1", REPLICA, "Share of a replica's cache that requests hold.")
PREEMPTIONS = Metric("rayplane_num_preemptions_total", "counter", "preemptions", REPLICA, "Requests put back for want of cache.")
DRAFTED = Metric(
    "rayplane_spec_decode_num_draft_tokens_total", "counter", "tokens", REPLICA, "Tokens that were guessed and computed by a replica."
)
ACCEPTED = Metric(
    "rayplane_spec_decode_num_accepted_tokens_total", "counter", "tokens", REPLICA, "Guessed tokens that were those of the text."
)
ENGINE_STEPS = Metric("rayplane_engine_steps_total", "counter", "steps", REPLICA, "Steps of a replica.")
REPLICA_UP = Metric("rayplane_replica_up", "gauge", "1", REPLICA, "1 while a replica takes requests, else 0.")

SERVE_CATALOG: tuple[Metric, ...] = (
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_LATENCY,
    QUEUE_TIME,
    PROMPT_LENGTH,
    OUTPUT_LENGTH,
    REQUESTS,
    ANSWERS,
    MOVED,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PREFIX_HITS,
    WAITING,
    RUNNING,
    UNPLACED,
    KV_USAGE,
    PREEMPTIONS,
    DRAFTED,
    ACCEPTED,
    ENGINE_STEPS,
    REPLICA_UP,
)
"""All metrics of a service, in the order they are documented."""
