"""`rayplane prepare`: any number of workers makes the same shards, once, and training takes them as they are."""

import json
import logging
import sys
from pathlib import Path

import pytest
import ray

from rayplane.spec.load import load_job
from rayplane.train.data import open_dataset


@pytest.fixture
def prepare(cluster, cli, job, tmp_path, monkeypatch):
    """Runs the command, which leaves the tests' Ray alone; returns its object. The text makes six shards."""
    monkeypatch.setattr("rayplane.cli.prepare.ray.shutdown", lambda: None)
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text("".join(f"{name}{i} tells of {i * i}\n" for i in range(45_000)))
    job()
    text = Path("job.yaml").read_text().replace(f"path: [{tmp_path / 'data.txt'}]", "path: [texts], holdout: 0.05")
    Path("job.yaml").write_text(text)

    def run(*options):
        result = cli("prepare", "job.yaml", "--json", *options)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    yield run
    logging.getLogger("ray.data").setLevel(logging.NOTSET)
    assert ray.is_initialized()


def content(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def refuses(build, numbers):
    raise AssertionError("tokenised again")


def test_any_number_of_workers_makes_the_same_shards_and_training_takes_them(prepare):
    one = prepare("--workers", "1")
    assert one["shards_built"] == 6
    shards = content(one["folder"])
    Path(one["folder"]).rename("aside")
    two = prepare("--workers", "2")
    assert content(two["folder"]) == shards
    assert one == two
    assert prepare()["shards_built"] == 0
    spec = load_job(Path("job.yaml"))
    dataset = open_dataset(spec.train.data, Path(), Path("runs/small/data"), 256, mapper=refuses)
    assert (dataset.fingerprint, dataset.num_samples) == (one["fingerprint"], one["samples"])


def test_bad_text_is_an_error_of_the_user(prepare, cli):
    Path("texts/d.jsonl").write_text('{"text": "fine"}\n{"body": "not"}\n')
    result = cli("prepare", "job.yaml")
    assert result.exit_code == 1
    assert "d.jsonl:2: has no field 'text' (has body); set train.data.text_field" in result.stderr


def test_without_ray_data_it_says_what_to_install(prepare, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "rayplane.runtime.ray.spread", None)
    result = cli("prepare", "job.yaml")
    assert result.exit_code == 1
    assert "rayplane prepare needs Ray Data" in result.stderr
    assert "pip install 'ray[data]'" in result.stderr
