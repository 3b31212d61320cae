"""What a job has trained is served, and trained further, straight from its checkpoints: as its exported form is, under any layout."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rayplane.errors import CheckpointError, SpecError
from rayplane.model.checkpoint_source import Boxes
from rayplane.model.weights import open_weights
from rayplane.serve.sampling import SamplingParams
from rayplane.serve.wire import Submit
from rayplane.spec.job import DataSection, TrainJob
from rayplane.spec.layout import Layout
from rayplane.spec.manifest import Manifest, complete
from rayplane.spec.model_section import ModelSection
from rayplane.spec.sharding import Chunk, tp_chunk
from rayplane.spec.source import load_model, model_folder
from rayplane.train.carried import carried_tokenizer
from rayplane.train.export import export
from rayplane.train.threads import run_ranks
from rayplane.train.worker import _begin, _build
from tests.parity.replica import Replica
from tests.parity.training import VOCAB, cut, make_rank, section, store, tiny

SPEC = tiny(max_seq=1024)
PROMPTS = [tuple((7 * i + 3 * j) % VOCAB for j in range(5 + 30 * i)) for i in range(4)]
TOKENS = 24


def saved(folder: Path, layout: Layout, steps: int = 3) -> Path:
    """The folder of a job of a few steps, which saved after each."""
    job = section(folder, steps=steps)

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        for _ in range(steps):
            rank.step(drain=False)
            rank.start_save(store(mesh, SPEC, job)).result()

    run_ranks(cut(SPEC, layout), body)
    return Path(job.checkpoint.dir)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return saved(tmp_path_factory.mktemp("trained"), Layout(dp=2, tp=2, zero=1, micro_batch=2))


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "out"
    export(complete(trained)[-1], out)
    return out


def answers(layout: Layout, path: Path):
    replica = Replica(layout, "fp32", ModelSection(path=str(path)))
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=5)
    given = replica.answers(replica.engine(chunk=16), [Submit(i, prompt, params) for i, prompt in enumerate(PROMPTS)])
    replica.close()
    return given


@pytest.mark.parametrize("layout", [Layout(pp=2), Layout(tp=3), Layout(cp=2)], ids=str)
def test_it_is_served_as_its_exported_form_is_serially(layout, trained, exported):
    of_checkpoint, of_export = answers(layout, trained), answers(Layout(), exported)
    for i in range(len(PROMPTS)):
        assert of_checkpoint[i].tokens == of_export[i].tokens and len(of_export[i].tokens) == TOKENS
        for one, other in zip(of_checkpoint[i].logprobs, of_export[i].logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_any_cut_reads_what_the_whole_has_there(tp, trained, exported):
    spec = load_model(ModelSection(path=str(trained)))
    checkpoint, whole = open_weights(trained, spec), open_weights(exported, spec)
    for tensor in spec.tensors():
        for index in range(tp):
            chunk = tp_chunk(tensor, tp, index)
            assert torch.equal(checkpoint.read(tensor.name, chunk), whole.read(tensor.name, chunk)), (tensor.name, index)


def test_a_rank_reads_no_box_that_it_has_no_part_of(trained, monkeypatch):
    spec, read, opened = load_model(ModelSection(path=str(trained))), Boxes._read, []
    monkeypatch.setattr(Boxes, "_read", lambda boxes, box: opened.append(box) or read(boxes, box))
    source = open_weights(trained, spec)
    for index in (0, 1):
        for tensor in (t for t in spec.tensors() if t.name in ("layers.0.q", "layers.3.down", "embed")):
            opened.clear()
            chunk = tp_chunk(tensor, 2, index)
            source.read(tensor.name, chunk)
            stored = Manifest.read(complete(trained)[-1]).tensors[f"model/{tensor.name}"]
            assert {b.key for b in opened} == {b.key for b in stored if b.chunk.overlap(chunk)} and 0 < len(opened) < len(stored)


def job_from(path: Path, folder: Path, data: Path, **changes) -> TrainJob:
    given = {"path": [str(data)], "seq_len": 12, "holdout": 0.1, "holdout_samples": 7} | changes
    train = section(folder).model_copy(update={"data": DataSection(**given)})
    return TrainJob(name="further", model=ModelSection(path=str(path)), train=train, layout="auto")


def test_training_starts_from_its_weights_with_a_new_optimizer(trained, tmp_path):
    job = job_from(trained, tmp_path, trained.parent / "tokens.npy")
    whole = open_weights(trained, SPEC)

    def body(mesh):
        rank = _build(job, mesh)
        _begin(job, rank, None, None)
        for piece in rank.optimizer.tensors():
            state, _, name = piece.name.partition("/")
            assert torch.equal(piece.data, whole.read(name, piece.part.chunk) if state == "model" else torch.zeros_like(piece.data))
        before = rank.evaluate()
        rank.step(drain=False)
        return rank.progress.step, before

    def at_the_end(mesh):
        rank = make_rank(SPEC, section(trained.parent), mesh)
        rank.resume(store(mesh, SPEC, section(trained.parent)), complete(trained)[-1])
        return rank.evaluate()

    first, second = run_ranks(cut(SPEC, Layout(pp=2, micro_batch=2)), body)
    assert first == second == (1, pytest.approx(run_ranks(cut(SPEC, Layout()), at_the_end)[0], rel=1e-6))


def test_a_flipped_byte_names_its_file_and_the_checkpoint_before(tmp_path):
    folder = saved(tmp_path, Layout())
    older, newest = complete(folder)
    file = newest / "rank-00000.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.write_bytes(raw)
    assert model_folder(ModelSection(path=str(folder))) == newest
    source = open_weights(folder, SPEC)
    with pytest.raises(CheckpointError, match=rf"{file}: \S+ is damaged \(its checksum differs\); .*name {older}"):
        for tensor in SPEC.tensors():
            source.read(tensor.name, Chunk((0,) * len(tensor.shape), tensor.shape))


def test_a_file_that_is_cut_off_is_named(tmp_path):
    folder = saved(tmp_path, Layout(), steps=1)
    file = complete(folder)[-1] / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=f"{file}: cannot read model/embed"):
        open_weights(folder, SPEC).read("embed", Chunk((0, 0), (1, 1)))


def test_another_model_is_refused_with_what_differs(trained):
    with pytest.raises(SpecError, match=r"holds another model \(layers 4 there, 5 here\)"):
        open_weights(trained, replace(SPEC, layers=5))


def test_checkpoints_carry_what_turns_text_into_their_ids(trained, tmp_path):
    text, arrays, files = tmp_path / "text.txt", trained.parent / "tokens.npy", tmp_path / "published"
    text.write_text("some text " * 50)
    files.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "notes.txt"):
        (files / name).write_text(name)
    of_bytes = carried_tokenizer(job_from(trained, tmp_path, text))
    of_arrays = carried_tokenizer(job_from(trained, tmp_path, arrays))
    named = job_from(trained, tmp_path, text, tokenizer=str(files))
    assert (of_bytes.name, of_bytes.files) == ("bytes", {})
    assert (of_arrays.name, of_arrays.files) == ("", {})
    assert carried_tokenizer(named).name == "tokenizer.json"
    assert carried_tokenizer(named).files == {n: n.encode() for n in ("tokenizer.json", "tokenizer_config.json")}


def test_a_carried_tokenizer_lies_in_the_checkpoint_and_goes_on_with_what_is_trained_from_it(tmp_path):
    files, job = tmp_path / "published", section(tmp_path, steps=1)
    files.mkdir()
    (files / "tokenizer.json").write_text("{}")
    named = carried_tokenizer(job_from(tmp_path, tmp_path, tmp_path / "tokens.npy", tokenizer=str(files)))

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        rank.step(drain=False)
        rank.start_save(replace(store(mesh, SPEC, job), tokenizer=named)).result()

    run_ranks(cut(SPEC, Layout(tp=2, micro_batch=2)), body)
    newest = complete(tmp_path / "run")[-1]
    assert Manifest.read(newest).tokenizer == "tokenizer.json" and (newest / "tokenizer.json").read_text() == "{}"
    (tmp_path / "other").mkdir()
    again = carried_tokenizer(job_from(newest, tmp_path / "other", tmp_path / "tokens.npy"))
    assert (again.name, again.files) == ("tokenizer.json", {"tokenizer.json": b"{}"})
