"""`rayplane run --runtime local` of a job that serves, with real ranks, and what can go wrong with them."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time

import openai
import pytest
from dummies import eventually, runs
from serving_job import Service, Streams, asked, get, play

LOCAL = ("--runtime", "local")
PROMPTS = [f"stream {i}: " + "abc" * (i % 5) for i in range(20)]
TOKENS = 250
SOON = len(PROMPTS)
"""Letters after which the disturbance comes: engines are far ahead of a client that decodes 20 streams in Python."""
TAKEN_OUT_S = 2.0
"""Within a second, where the machine has nothing else to do."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Two replicas; tests leave both alive."""
    with Service(tmp_path_factory.mktemp("two"), *LOCAL) as run:
        run.until_live(2)
        yield run


@pytest.fixture(scope="module")
def undisturbed(service):
    """The texts of all prompts, when nothing happens."""
    streams = play(service.url, PROMPTS, TOKENS)
    assert set(streams.finished) == {"length"} and all(len(text) == TOKENS for text in streams.texts)
    return streams.texts


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0)


def test_answers_at_once_and_as_a_stream(service, undisturbed):
    answer = client(service.url).completions.create(model=service.name, **asked(PROMPTS[3], TOKENS))
    assert answer.choices[0].text == undisturbed[3]
    assert answer.usage.completion_tokens == TOKENS and answer.model == service.name


def test_status_shows_replicas_and_load(service, undisturbed, cli, monkeypatch):
    monkeypatch.chdir(service.path)
    shown = cli("status").stdout
    assert service.url in shown and "serving" in shown and "2/2" in shown
    status = service.status()
    assert [r["phase"] for r in status["replicas"]] == ["serving"] * 2 and all(r["address"] for r in status["replicas"])
    assert eventually(lambda: service.status()["output_tokens_s"] > 0, 5)


def test_metrics_tell_where_ranks_time_goes_and_what_requests_meet(service, undisturbed):
    def told():
        (entry,) = json.loads((service.folder / "metrics-targets.json").read_text())
        return "".join(get(f"http://{target}/metrics") for target in entry["targets"])

    of_rank = f'rayplane_step_seconds_total{{phase="forward",rank="0",replica="1",run="{service.name}",stage="0"}}'
    assert eventually(lambda: of_rank in told(), 10), told()
    text = told()
    assert f'rayplane_job_state{{run="{service.name}",state="serving"}} 1.0' in text
    assert f'rayplane_kv_cache_usage_ratio{{replica="0",run="{service.name}"}}' in text
    assert f'rayplane_num_preemptions_total{{replica="0",run="{service.name}"}}' in text


def test_killed_rank_breaks_no_stream_and_changes_no_text(service, undisturbed):
    service.until_live(2)
    before, number = service.status()["restarts"], min(int(name) for name, state in service.health().items() if state == "live")
    victim = service.ranks()[f"replica-{number}/0"]
    streams = play(service.url, PROMPTS, TOKENS, SOON, lambda: os.kill(victim, signal.SIGKILL))
    assert streams.texts == undisturbed
    assert eventually(lambda: service.status()["restarts"] == before + 1, 5)
    service.until_live(2)
    assert f"replica {number}: rank 0 was killed by SIGKILL; another one takes its place" in service.said()


def test_stopped_rank_is_left_within_a_second_and_replaced(service, undisturbed):
    service.until_live(2)
    before, number = service.status()["restarts"], min(int(name) for name, state in service.health().items() if state == "live")
    victim = service.ranks()[f"replica-{number}/0"]
    took_s = []

    def stop():
        os.kill(victim, signal.SIGSTOP)
        stopped_s = time.monotonic()
        taken_out = eventually(lambda: service.health().get(str(number)) != "live", 10)
        took_s.append(time.monotonic() - stopped_s if taken_out else 10.0)

    watch = threading.Thread(target=stop)
    streams = play(service.url, PROMPTS, TOKENS, SOON, watch.start)
    watch.join()
    assert streams.texts == undisturbed
    assert took_s[0] < TAKEN_OUT_S and streams.longest_gap_s < 2 * TAKEN_OUT_S, (took_s, streams.longest_gap_s)
    assert eventually(lambda: service.status()["restarts"] == before + 1, 20), service.said()
    assert eventually(lambda: not runs(victim), 10)
    service.until_live(2)
    assert any(f"replica {number}: {what}" in service.said() for what in ("requests cannot reach it", "rank 0 was stopped by SIGSTOP"))


def test_sigterm_finishes_what_runs_and_leaves_nothing(service, undisturbed):
    service.until_live(2)
    url, ranks = service.url, list(service.ranks().values())
    port = int(url.rpartition(":")[2])
    streams = Streams(url, PROMPTS, TOKENS)
    running = threading.Thread(target=lambda: asyncio.run(streams.play()))
    running.start()
    assert eventually(lambda: sum(map(len, streams.texts)) > 200, 20)
    service.driver.send_signal(signal.SIGTERM)
    running.join(60)
    assert streams.texts == undisturbed
    assert service.end() == 0, service.said()
    assert len(ranks) == 3 and eventually(lambda: not any(map(runs, ranks)), 0)
    final = service.result()
    assert final["state"] == "drained" and final["restarts"] >= 2
    assert final["tokens"] > 20 * TOKENS and {s["replica"] for s in final["stages"]} & {2, 3}
    assert service.status()["state"] == "drained"
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_second_signal_breaks_off_what_runs(tmp_path):
    with Service(tmp_path, *LOCAL, layout="{dp: 1, pp: 2}") as run:
        run.until_live(1)
        url, ranks = run.url, list(run.ranks().values())
        second = Service(tmp_path, *LOCAL)
        assert second.end() == 1 and "is in use by pid" in second.said()
        answer = threading.Thread(target=lambda: _swallow(url, run.name))
        answer.start()
        assert eventually(lambda: run.status()["running"] > 0, 20)
        for _ in range(2):
            run.driver.send_signal(signal.SIGTERM)
            assert eventually(lambda: "stopping" in (run.path / "err").read_text() or run.driver.poll() is not None, 10)
        assert run.end(20) == 130
        assert len(ranks) == 3 and eventually(lambda: not any(map(runs, ranks)), 0)
        answer.join(20)


def _swallow(url, model):
    """A long answer that is broken off."""
    with contextlib.suppress(openai.OpenAIError):
        client(url).completions.create(model=model, n=8, **asked("x", 400))


def test_port_that_is_taken_ends_the_service_with_the_reason(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, Service(tmp_path, *LOCAL, port=taken.getsockname()[1]) as run:
        assert run.end(90) == 1
        assert run.result()["state"] == "failed"
        assert "serve.port: 127.0.0.1:" in run.said() and "is in use; choose another" in run.said()
