"""`rayplane run` of a job that trains, and of one that serves what it has saved: no export, no tokenizer named, another layout."""

import subprocess
import sys

import openai
import pytest
from serving_job import Service, asked

from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Submit
from rayplane.spec.layout import Layout
from rayplane.spec.model_section import ModelSection
from tests.parity.replica import Replica

TRAIN = """\
name: taught
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, mlp: 64, vocab: 256, max_seq: 1024, tied: true, init_std: 0.1}
train:
  data: {path: [text.txt], tokenizer: bytes, seq_len: 32}
  steps: 6
  global_batch: 8
  optimizer: {lr: 3.0e-3}
  checkpoint: {dir: runs/taught, every: 3}
layout: {tp: 2, micro_batch: 2}
"""
SERVE = """\
name: SERVED
model: {path: ../training/runs/taught, dtype: fp32}
serve: {port: 0, max_context: 512, batch: {max_sequences: 8, max_tokens: 128}}
layout: {dp: 1, pp: 2}
"""
PROMPTS = ["the cat sat on", "a", "on the mat " * 9]
TOKENS = 40


def rayplane(folder, *words):
    done = subprocess.run([sys.executable, "-m", "rayplane", *words], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exported(folder):
    """(text, logprobs) of each prompt, by the exported model on one rank."""
    rayplane(folder, "export", "runs/taught", "out")
    replica = Replica(Layout(), "fp32", ModelSection(path=str(folder / "out")))
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=1)
    given = replica.answers(replica.engine(), [Submit(i, tuple(prompt.encode()), params) for i, prompt in enumerate(PROMPTS)])
    replica.close()
    return [(bytes(g.tokens).decode(errors="replace"), [one.logprob for one in g.logprobs]) for g in given.values()]


def test_what_tp2_has_taught_pp2_serves(tmp_path):
    training, serving = tmp_path / "training", tmp_path / "serving"
    training.mkdir()
    serving.mkdir()
    (training / "text.txt").write_text("the cat sat on the mat, and the dog on the log. " * 200)
    (training / "train.yaml").write_text(TRAIN)
    rayplane(training, "run", "train.yaml", "--runtime", "local")
    text = SERVE.replace("SERVED", f"served-{tmp_path.name}"[:60])
    with Service(serving, "--runtime", "local", text=text) as service:
        expected = exported(training)
        service.until_live(1)
        assert {name.partition("/")[0] for name in service.ranks()} == {"replica-0", "ingress"} and len(service.ranks()) == 3
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", timeout=60, max_retries=0) as client:
            (model,) = [model.id for model in client.models.list()]
            for prompt, (text, logprobs) in zip(PROMPTS, expected, strict=True):
                (choice,) = client.completions.create(model=model, logprobs=1, **asked(prompt, TOKENS)).choices
                assert choice.text == text
                assert choice.logprobs.token_logprobs == pytest.approx(logprobs, abs=1e-3)
