"""A job that serves: what its file may say, what is left out, and every mistake with its line, field and remedy."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayplane.errors import SpecError
from rayplane.spec.job import ServeJob, TrainJob
from rayplane.spec.layout import Layout
from rayplane.spec.load import load_job, load_serving, load_training
from rayplane.spec.serve_section import KvSection, SpeculativeSection

JOBS = Path(__file__).parents[2] / "jobs"
MISTAKES = [m for m in yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text()) if m.get("job") == "serve"]

GOOD = """\
name: small
model: {preset: tiny-llama, dtype: bf16}
serve:
  port: 8000
  max_context: 1024
  kv: {dtype: auto, memory: 0.9, block: 16, prefix_cache: true}
  slo: {ttft_ms: 500, tpot_ms: 50}
  replicas: {min: 1, max: 4}
  queue: {max_requests: 256}
  tokenizer: bytes
layout: {dp: 2}
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


def load(folder: Path, text: str) -> ServeJob:
    job = load_job(written(folder, text))
    assert isinstance(job, ServeJob)
    return job


def test_a_job_that_serves_says_what_it_serves_and_how(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD)
    assert job.serve.kv == KvSection(dtype="auto", memory=0.9, block=16, prefix_cache=True)
    assert (job.serve.slo.ttft_ms, job.serve.slo.tpot_ms, job.serve.replicas.max) == (500, 50, 4)
    assert job.layout != "auto" and job.layout.layout(1) == Layout(dp=2)


def test_an_empty_section_serves_with_what_is_usual(tmp_path: Path) -> None:
    job = load(tmp_path, "name: a\nmodel: {preset: tiny-llama}\nserve: {tokenizer: bytes}\n")
    assert (job.layout, job.model.dtype, job.serve.port, job.serve.host) == ("auto", None, 8000, "127.0.0.1")
    assert (job.serve.queue.max_requests, job.serve.replicas.min, job.serve.replicas.max) == (256, 1, None)
    assert (job.serve.speculative, job.serve.api_keys, job.serve.slo.ttft_ms) == (None, None, None)


def test_an_empty_subsection_switches_guessing_on(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD.replace("  tokenizer: bytes", "  tokenizer: bytes\n  speculative: {}"))
    assert job.serve.speculative == SpeculativeSection(method="ngram", tokens=4, match=3)


def test_replicas_are_chosen_where_the_layout_leaves_them_out(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD.replace("dp: 2", "tp: 2"))
    assert job.layout != "auto" and job.layout.layout(3) == Layout(dp=3, tp=2)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[m["new"].strip().replace("\n", " ")[:40] for m in MISTAKES])
def test_a_mistake_is_named_with_line_field_value_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert GOOD.count(mistake["old"]) == 1, mistake["old"]
    with pytest.raises(SpecError) as e:
        load_job(written(tmp_path, GOOD.replace(mistake["old"], mistake["new"])))
    lines = [line.removeprefix(f"{tmp_path}/").replace(str(tmp_path), "CWD") for line in str(e.value).splitlines()]
    assert lines == [f"job.yaml:{error}" for error in mistake["errors"]]


def test_a_job_with_neither_is_told_of_both(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="train: is missing; add `train:` with fields such as data, steps, global_batch to train, or"):
        load_job(written(tmp_path, "name: a\nmodel: {preset: tiny-llama}\n"))


def test_a_command_for_one_kind_refuses_the_other_by_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    with pytest.raises(SpecError, match=r"job\.yaml:3: serve: this job serves; rayplane trace takes a job that trains, with a train"):
        load_training(file, "trace")
    assert load_serving(file, "batch") == load_job(file)
    with pytest.raises(SpecError, match=r"train: this job trains; rayplane batch takes a job that serves, with a serve section"):
        load_serving(JOBS / "quickstart.yaml", "batch")


def test_a_job_that_serves_goes_through_json_unchanged(tmp_path: Path) -> None:
    job = load(tmp_path, GOOD)
    assert ServeJob.model_validate(job.model_dump(mode="json")) == job
    assert not isinstance(job, TrainJob)


def test_files_of_a_described_cluster_need_not_be_here(tmp_path: Path) -> None:
    text = GOOD.replace("tokenizer: bytes", "api_keys: {file: /no/such/keys}\n  tokenizer: /no/such/tokenizer.json")
    with pytest.raises(SpecError):
        load(tmp_path, text)
    load(tmp_path, text + "cluster: {nodes: [{device: h100-sxm, devices: 8}]}\n")
