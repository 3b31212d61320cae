"""`rayplane run jobs/serve-smollm2.yaml`: the real model of the wheel answers OpenAI's own client."""

import signal
from pathlib import Path

import openai
import pytest
from serving_job import Service

JOB = Path(__file__).parents[2] / "jobs/serve-smollm2.yaml"
QUESTION = [{"role": "user", "content": "How many days are in a week?"}]
"""In fp32 every token of its answer is 0.5 nat ahead of the next: how a CPU rounds bf16 does not change it."""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The job as it is, on a port that is free."""
    text = JOB.read_text()
    assert "port: 8000" in text
    with Service(tmp_path_factory.mktemp("smollm2"), "--runtime", "local", text=text.replace("port: 8000", "port: 0")) as run:
        run.until_live(1)
        yield run


def test_it_knows_the_days_of_a_week_at_once_and_as_a_stream(service):
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=120) as client:
        (model,) = [model.id for model in client.models.list()]
        answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32)
        stream = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=32, stream=True)
        told = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert model == "serve-smollm2"
    assert answer.choices[0].message.content == told == "A week is approximately 7 days."
    assert answer.choices[0].finish_reason == "stop"


def test_it_ends_in_order(service):
    service.driver.send_signal(signal.SIGTERM)
    assert service.end() == 0, service.said()
    assert service.result()["state"] == "drained" and service.result()["tokens"] > 0
    assert (service.folder / "tokenizer/tokenizer.json").is_file()
