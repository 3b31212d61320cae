"""A checkpoint knows no layout: what one layout saved, any other goes on from, with the same data and the same loss."""

import json
import shutil
import threading
from pathlib import Path

import pytest
import torch

from rayplane.errors import CheckpointError
from rayplane.spec.layout import Layout
from rayplane.spec.manifest import Manifest, complete
from rayplane.train import checkpoint as checkpoint_module
from rayplane.train.checkpoint import Store
from rayplane.train.threads import run_ranks

from .training import assert_equal, cut, make_rank, section, store, tiny, train

SPEC = tiny(tied=True)
CHAIN = [
    Layout(tp=2, micro_batch=2),
    Layout(pp=2, micro_batch=2),
    Layout(dp=2, micro_batch=2),
    Layout(dp=3, tp=2, sp=True, zero=1, micro_batch=2),
    Layout(dp=2, pp=2, vpp=2, schedule="zbv", zero=1, micro_batch=1),
    Layout(dp=2, cp=2, zero=3, shard=2, micro_batch=2),
]


def run_part(layout, job, resume, steps):
    """Steps up to `steps` under a layout, from a checkpoint if there is one; saves at the end and returns the losses."""

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        checkpoints = store(mesh, SPEC, job)
        if resume:
            rank.resume(checkpoints, resume)
        losses = [rank.step(drain=False)[0].loss for _ in range(rank.progress.step, steps)]
        rank.start_save(checkpoints).result()
        return losses

    return run_ranks(cut(SPEC, layout), body)[0]


def test_resume_under_other_layouts_equals_straight_through(tmp_path):
    job = section(tmp_path, steps=30)
    straight = train(SPEC, Layout(micro_batch=8), job)
    losses, newest = [], None
    for steps, layout in zip((5, 10, 15, 20, 25, 30), CHAIN, strict=True):
        losses += run_part(layout, job, newest, steps)
        newest = complete(tmp_path / "run")[-1]
    assert losses == pytest.approx(straight.losses, rel=1e-6)

    def load(rank):
        rank.resume(store(rank.mesh, SPEC, job), newest)

    assert_equal(train(SPEC, Layout(tp=3), job, before=load), _without_steps(straight))


def _without_steps(run):
    return type(run)([], [], run.holdout, run.tensors)


@pytest.mark.parametrize(("zero", "shard"), [(0, 0), (1, 0), (3, 0), (2, 2)])
def test_every_element_is_written_once(zero, shard, tmp_path):
    run_part(Layout(dp=4 if shard else 2, pp=2, tp=2 - shard // 2, zero=zero, shard=shard, micro_batch=2), section(tmp_path), None, 1)
    manifest = Manifest.read(complete(tmp_path / "run")[-1])
    shapes = {t.name: t.numel for t in SPEC.tensors()}
    assert {n.partition("/")[2] for n in manifest.tensors} == set(shapes)
    for name, boxes in manifest.tensors.items():
        assert sum(b.chunk.numel for b in boxes) == shapes[name.partition("/")[2]]
    writers = {b.file for boxes in manifest.tensors.values() for b in boxes}
    assert len(writers) == 8, "all ranks share the writing"


def test_only_the_newest_are_kept(tmp_path):
    job = section(tmp_path)
    newest = None
    for steps in (1, 2, 3):
        run_part(Layout(), job, newest, steps)
        newest = complete(tmp_path / "run")[-1]
    assert [p.name for p in complete(tmp_path / "run")] == ["step-00000002", "step-00000003"]


def test_flipped_byte_is_named(tmp_path):
    run_part(Layout(), section(tmp_path), None, 1)
    folder = complete(tmp_path / "run")[-1]
    file = folder / "rank-00000.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors: \S+ is damaged"):
        run_part(Layout(), section(tmp_path), folder, 2)


def test_other_model_is_refused(tmp_path):
    run_part(Layout(), section(tmp_path), None, 1)
    folder = complete(tmp_path / "run")[-1]
    with pytest.raises(CheckpointError, match="layers 4 there, 5 here"):
        Manifest.read(folder).check_model(tiny(tied=True, layers=5), folder)


def test_other_data_is_refused(tmp_path):
    run_part(Layout(), section(tmp_path), None, 1)
    folder = complete(tmp_path / "run")[-1]
    job = section(tmp_path)
    other = job.model_copy(update={"data": job.data.model_copy(update={"seed": 1})})
    with pytest.raises(CheckpointError, match="trained on other data"):
        run_part(Layout(), other, folder, 2)


def test_another_global_batch_goes_on_with_the_next_sample(tmp_path):
    """Neither repeated nor skipped: 2 steps of 8 samples and 1 of 4 see samples 0 to 19."""
    run_part(Layout(micro_batch=8), section(tmp_path), None, 2)
    smaller = section(tmp_path, global_batch=4)
    run_part(Layout(dp=2, micro_batch=2), smaller, complete(tmp_path / "run")[-1], 3)
    assert [Manifest.read(p).samples for p in complete(tmp_path / "run")] == [16, 20]


def test_a_folder_without_manifest_is_no_checkpoint(tmp_path):
    run_part(Layout(), section(tmp_path), None, 1)
    folder = complete(tmp_path / "run")[-1]
    shutil.copytree(folder, folder.with_name("step-00000009"))
    (folder.with_name("step-00000009") / "manifest.json").unlink()
    assert complete(tmp_path / "run") == [folder]


@pytest.mark.parametrize("text", ["", "[]", "null", '{"format": 1}', '{"format": 9, "tensors": {}}', '{"format": 1, "tensors": [1]}'])
def test_a_damaged_manifest_is_said_with_the_remedy(text, tmp_path):
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    (folder / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*; remove .*step-00000001 to go on from an older checkpoint"):
        Manifest.read(folder)


def test_missing_box_is_named(tmp_path):
    run_part(Layout(), section(tmp_path), None, 1)
    folder = complete(tmp_path / "run")[-1]
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tensors"]["model/layers.2.q"] = []
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"model/layers\.2\.q is incomplete: 0 of"):
        run_part(Layout(), section(tmp_path), folder, 2)


def test_full_disk_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    job = section(tmp_path)
    run_part(Layout(), job, None, 1)
    good = complete(tmp_path / "run")

    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("rayplane.train.checkpoint.save_file", full)
    with pytest.raises(CheckpointError, match=r"step 2 .* No space left on device.*step-00000001 is still good"):
        run_part(Layout(dp=2, micro_batch=2), job, good[-1], 2)
    assert complete(tmp_path / "run") == good
    assert not list((tmp_path / "run").glob(".step-*"))


def test_training_goes_on_while_a_save_is_written(tmp_path, monkeypatch):
    """The copy is taken before the next step; a second save waits for the first."""
    job, release = section(tmp_path), threading.Event()
    write, order = Store._write, []

    def slow(checkpoints, folder, tensors):
        assert release.wait(20)
        order.append(folder.name)
        write(checkpoints, folder, tensors)

    monkeypatch.setattr(Store, "_write", slow)

    def body(mesh):
        rank, checkpoints = make_rank(SPEC, job, mesh), store(mesh, SPEC, job)
        rank.step(drain=False)
        before = {p.name: p.data.clone() for p in rank.optimizer.tensors()}
        first = rank.start_save(checkpoints)
        rank.step(drain=False)
        second = rank.start_save(checkpoints)
        unfinished = not first.done() and not second.done()
        release.set()
        folder = first.result()
        second.result()
        fresh = make_rank(SPEC, job, mesh)
        fresh.resume(checkpoints, folder)
        return unfinished, all(torch.equal(before[p.name], p.data) for p in fresh.optimizer.tensors())

    assert run_ranks(cut(SPEC, Layout(dp=2, micro_batch=2)), body) == [(True, True)] * 2
    assert order == [".step-00000001.tmp"] * 2 + [".step-00000002.tmp"] * 2


def test_a_checkpoint_has_its_name_once_all_of_it_is_on_disk(tmp_path, monkeypatch):
    """Every rank's file, the manifest, the folder that lists them, then the name. Else a power cut leaves a name and no data."""
    order, fsync, rename = [], checkpoint_module._fsync, Path.rename

    def synced(path):
        assert path.is_dir() or path.stat().st_size > 0
        fsync(path)
        order.append(path.name)

    def renamed(path, target):
        order.append(f"{path.name} > {target.name}")
        return rename(path, target)

    monkeypatch.setattr(checkpoint_module, "_fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    run_part(Layout(dp=2, micro_batch=2), section(tmp_path), None, 1)
    assert sorted(order[:2]) == ["rank-00000.safetensors", "rank-00001.safetensors"]
    assert order[2:] == ["manifest.json", ".step-00000001.tmp", ".step-00000001.tmp > step-00000001", "run"]


def test_a_manifest_that_cannot_be_written_leaves_no_folder_of_that_step(tmp_path, monkeypatch):
    """The name comes last: a folder called step-N is complete."""
    job = section(tmp_path)
    run_part(Layout(), job, None, 1)
    good = complete(tmp_path / "run")

    def full(manifest):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Manifest, "dump", full)
    with pytest.raises(CheckpointError, match=r"rank 0: .*No space left on device.*step-00000001 is still good"):
        run_part(Layout(dp=2, micro_batch=2), job, good[-1], 2)
    assert [p for p in (tmp_path / "run").iterdir() if "step-" in p.name] == good


def test_leftovers_of_an_interrupted_save_are_removed_and_checkpoints_are_not(tmp_path):
    job = section(tmp_path)
    run_part(Layout(), job, None, 1)
    leftover = tmp_path / "run" / ".step-00000002.tmp"
    leftover.mkdir()
    (leftover / "rank-00000.safetensors").touch()
    run_ranks(cut(SPEC, Layout()), lambda mesh: store(mesh, SPEC, job).clean())
    assert [p.name for p in (tmp_path / "run").iterdir() if "step-" in p.name] == ["step-00000001"]


def test_bf16_weights_are_their_masters_rounded_after_a_step_and_after_a_resume(tmp_path):
    job = section(tmp_path, precision="bf16")

    def follow(rank):
        masters = {p.part.tensor.name: p.data for p in rank.optimizer.tensors() if p.name.startswith("model/")}
        views = {part.tensor.name: view for weight in rank.weights for part, view in weight.views(weight.data)}
        assert masters.keys() == views.keys()
        assert all(torch.equal(v, masters[n].bfloat16()) and v.dtype == torch.bfloat16 for n, v in views.items())
        return rank.evaluate()

    def body(mesh):
        rank, again = make_rank(SPEC, job, mesh), make_rank(SPEC, job, mesh)
        fresh = rank.evaluate()
        rank.step(drain=False)
        again.resume(store(mesh, SPEC, job), rank.start_save(store(mesh, SPEC, job)).result())
        return fresh, follow(rank), follow(again)

    for fresh, trained, resumed in run_ranks(cut(SPEC, Layout(tp=2, micro_batch=4)), body):
        assert fresh != trained == resumed
