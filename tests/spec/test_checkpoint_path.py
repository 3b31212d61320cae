"""A checkpoint is a model: which folder is meant, whose tokenizer it is, and what is wrong with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rayplane.errors import SpecError
from rayplane.spec.job import ServeJob, TrainJob
from rayplane.spec.load import load_job, load_model, model_folder
from rayplane.spec.manifest import NAME, Box, Manifest, described, folder_name
from rayplane.spec.model import ModelSpec
from rayplane.spec.model_section import ModelSection
from rayplane.spec.source import pinned
from rayplane.spec.tokenizer import named_tokenizer

SPEC = ModelSpec(2, 32, 4, 2, 8, 64, 256, name="tiny")
FILE = "rank-00000.safetensors"
SERVE = "name: a\nmodel: {path: PATH}\nserve: {port: 0}\n"
TRAIN = (
    "name: a\nmodel: {path: PATH}\ntrain: {data: {path: [data.txt], seq_len: 8}, steps: 1, global_batch: 1, checkpoint: {dir: DIR}}\n"
)


def save(folder: Path, spec: ModelSpec = SPEC, tokenizer: str = "bytes", **tensors: tuple[Box, ...]) -> Path:
    """A checkpoint that one rank has written, by its manifest; its weights are left out."""
    folder.mkdir(parents=True)
    (folder / FILE).touch()
    boxes = {f"model/{t.name}": (Box((0,) * len(t.shape), t.shape, FILE, t.name, 0),) for t in spec.tensors()}
    manifest = Manifest(7, 56, "data", described(spec), {**boxes, **{f"model/{n}": b for n, b in tensors.items()}}, "", tokenizer)
    (folder / NAME).write_text(manifest.dump())
    return folder


def fault(path: Path) -> str:
    with pytest.raises(SpecError) as caught:
        load_model(ModelSection(path=str(path)))
    assert {p.field for p in caught.value.problems} == {"model.path"}
    return str(caught.value)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder with two complete checkpoints, and a third on its way."""
    for step in (100, 200):
        save(tmp_path / "runs" / folder_name(step), replace(SPEC, name=f"of-{step}"))
    (tmp_path / "runs" / ".step-00000300.tmp").mkdir()
    (tmp_path / "runs" / folder_name(250)).mkdir()
    return tmp_path / "runs"


def test_a_jobs_folder_means_its_newest_complete_checkpoint(job: Path) -> None:
    section = ModelSection(path="runs")
    assert load_model(section, job.parent) == replace(SPEC, name="of-200")
    assert model_folder(section, job.parent) == job / folder_name(200)


def test_a_checkpoint_can_be_named_itself_and_may_lie_elsewhere(job: Path, tmp_path: Path) -> None:
    assert load_model(ModelSection(path=str(job / folder_name(100)))).name == "of-100"
    (job / folder_name(100)).rename(tmp_path / "kept")
    assert load_model(ModelSection(path=str(tmp_path / "kept"))).name == "of-100"


def test_what_a_jobs_folder_means_can_be_held_while_newer_ones_come(job: Path) -> None:
    held = pinned(ModelSection(path=str(job), dtype="fp32"))
    save(job / folder_name(400), replace(SPEC, name="of-400"))
    assert (load_model(held).name, held.dtype) == ("of-200", "fp32")
    assert load_model(ModelSection(path=str(job))).name == "of-400"
    for other in (ModelSection(preset="tiny-llama"), ModelSection(path="pypi://x")):
        assert pinned(other) == other


def test_a_hugging_face_folder_with_a_manifest_beside_it_stays_one(tmp_path: Path) -> None:
    save(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    assert "config.json" in fault(tmp_path / "model") or "model" in fault(tmp_path / "model")
    assert "manifest" not in fault(tmp_path / "model")


def test_a_folder_without_anything_is_no_checkpoint(tmp_path: Path) -> None:
    assert f"{tmp_path} has no config.json; name a Hugging Face model folder, a checkpoint or a .gguf file" in fault(tmp_path)


def test_a_save_that_is_not_done_names_the_newest_that_is(job: Path, tmp_path: Path) -> None:
    said = fault(job / folder_name(250))
    assert f"{job / folder_name(250)} holds no complete checkpoint" in said and f"name {job / folder_name(200)}" in said
    (tmp_path / "new" / ".step-00000001.tmp").mkdir(parents=True)
    assert "holds no complete checkpoint: a save is under way, or was interrupted; name another" in fault(tmp_path / "new")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9, "tensors": {}}', '{"name": "an extension of a browser"}'])
def test_a_damaged_newest_manifest_is_named_with_the_one_before(job: Path, text: str) -> None:
    (job / folder_name(200) / NAME).write_text(text)
    said = fault(job)
    assert str(job / folder_name(200) / NAME) in said and f"name {job / folder_name(100)}" in said


def test_weights_that_are_not_all_there_are_named(job: Path, tmp_path: Path) -> None:
    (job / folder_name(200) / FILE).unlink()
    assert f"{job / folder_name(200)} is not whole: {FILE} is missing; name {job / folder_name(100)}" in fault(job)
    cut = save(tmp_path / "cut", norm=(Box((0,), (31,), FILE, "norm", 0),))
    assert "norm is incomplete: 31 of 32 elements" in fault(cut)
    without = save(tmp_path / "without", head=())
    assert "head is incomplete: 0 of 8192 elements" in fault(without)
    for size in ((33,), (32, 1)):
        other = save(tmp_path / f"other{len(size)}", norm=(Box((0,) * len(size), size, FILE, "norm", 0),))
        assert "the boxes of norm do not lie within [32]" in fault(other)


def test_a_model_that_makes_no_sense_is_said(tmp_path: Path) -> None:
    folder = save(tmp_path / "x")
    manifest = json.loads((folder / NAME).read_text())
    for change in ({"rope": {"colour": 1}}, {"colour": "green"}):
        (folder / NAME).write_text(json.dumps({**manifest, "model": {**manifest["model"], **change}}))
        assert "its model cannot be read" in fault(folder)


def test_its_tokenizer_is_that_of_the_job_that_wrote_it(tmp_path: Path) -> None:
    with_file = save(tmp_path / "file", tokenizer="tokenizer.json")
    (with_file / "tokenizer.json").write_text("{}")
    for folder, named in ((save(tmp_path / "bytes"), "bytes"), (with_file, str(with_file))):
        assert named_tokenizer("model", ModelSection(path=str(folder)), "serve.tokenizer") == named
    assert named_tokenizer("bytes", ModelSection(path=str(with_file)), "serve.tokenizer") == "bytes"
    with pytest.raises(SpecError, match=r"serve.tokenizer: model: \S+ has no tokenizer.json; name one, or use bytes"):
        named_tokenizer("model", ModelSection(path=str(save(tmp_path / "none", tokenizer=""))), "serve.tokenizer")


def test_jobs_that_serve_and_that_train_take_it(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("some text " * 50)
    Path("serve.yaml").write_text(SERVE.replace("PATH", "runs"))
    Path("train.yaml").write_text(TRAIN.replace("PATH", "runs/step-00000100").replace("DIR", "other"))
    assert isinstance(load_job(Path("serve.yaml")), ServeJob)
    assert isinstance(load_job(Path("train.yaml")), TrainJob)


def test_a_checkpoint_without_a_tokenizer_asks_for_one_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "runs" / folder_name(1), tokenizer="")
    Path("job.yaml").write_text(SERVE.replace("PATH", "runs"))
    with pytest.raises(SpecError, match=r"serve.tokenizer: model: \S*runs/step-00000001 has no tokenizer.json; name one, or use bytes"):
        load_job(Path("job.yaml"))
    Path("job.yaml").write_text(SERVE.replace("PATH", "runs").replace("port: 0", "tokenizer: bytes"))
    assert load_job(Path("job.yaml")).serve.tokenizer == "bytes"


@pytest.mark.parametrize("path", ["runs", "runs/step-00000100"])
def test_a_job_does_not_start_from_its_own_checkpoints(path: str, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("some text " * 50)
    Path("job.yaml").write_text(TRAIN.replace("PATH", path).replace("DIR", "runs"))
    with pytest.raises(SpecError, match=r"job.yaml:2: model.path: lies in train.checkpoint.dir"):
        load_job(Path("job.yaml"))
