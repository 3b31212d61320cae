"""A damaged checkpoint is passed over: all ranks take the one before, and the damaged one never counts again."""

import shutil

import pytest

from rayplane.errors import CheckpointError
from rayplane.spec.layout import Layout
from rayplane.spec.manifest import complete
from rayplane.train.recover import recover
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, store, tiny

SPEC = tiny(tied=True)
PAIR = Layout(dp=2, zero=1, micro_batch=2)


def flip(folder):
    file = folder / "rank-00001.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 1
    file.write_bytes(raw)


def truncate(folder):
    file = folder / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


DAMAGE = {
    "a flipped byte": flip,
    "a truncated file": truncate,
    "a missing file": lambda folder: (folder / "rank-00000.safetensors").unlink(),
    "an empty file": lambda folder: (folder / "rank-00000.safetensors").write_bytes(b""),
    "an unreadable manifest": lambda folder: (folder / "manifest.json").write_text('{"format": 1'),
}


@pytest.fixture
def saved(tmp_path):
    """A job with checkpoints of steps 1, 2 and 3."""
    job = section(tmp_path, checkpoint=section(tmp_path).checkpoint.model_copy(update={"keep": 3}))

    def body(mesh):
        rank, checkpoints = make_rank(SPEC, job, mesh), store(mesh, SPEC, job)
        for _ in range(3):
            rank.step(drain=False)
            rank.start_save(checkpoints).result()

    run_ranks(cut(SPEC, PAIR), body)
    return job, tmp_path / "run"


def begin(job, resume, layout=PAIR):
    """By rank: the step to go on from, and what it says."""

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        said = recover(rank, store(mesh, SPEC, job), None, resume)
        return rank.progress.step, rank.progress.samples, said

    return run_ranks(cut(SPEC, layout), body)


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_the_one_before_is_used_and_the_damaged_one_named_and_renamed(damage, saved):
    """Under a layout in which not every rank reads every file, all agree."""
    job, folder = saved
    damage(complete(folder)[-1])
    results = begin(job, complete(folder)[-1], Layout(pp=2, micro_batch=2))
    for step, samples, said in results:
        assert (step, samples) == (2, 16)
        (warning,) = said
        assert "step-00000003/" in warning
        assert warning.endswith("; the folder is now called step-00000003.corrupt, and the checkpoint before it is used")
    assert [p.name for p in complete(folder)] == ["step-00000001", "step-00000002"]
    assert (folder / "step-00000003.corrupt").is_dir()
    assert begin(job, complete(folder)[-1])[0][0::2] == (2, [])


def test_several_are_passed_over_and_a_name_that_is_taken_is_not_taken_again(saved):
    job, folder = saved
    shutil.copytree(folder / "step-00000003", folder / "step-00000003.corrupt")
    flip(folder / "step-00000003")
    truncate(folder / "step-00000002")
    step, _, said = begin(job, folder / "step-00000003")[0]
    assert (step, len(said)) == (1, 2)
    assert sorted(p.name for p in folder.glob("step-*")) == [
        "step-00000001",
        "step-00000002.corrupt",
        "step-00000003.corrupt",
        "step-00000003.corrupt-2",
    ]


def test_where_none_is_left_the_job_does_not_begin_from_nothing_now_or_later(saved):
    job, folder = saved
    for path in complete(folder):
        flip(path)
    message = r"no checkpoint left that is not damaged \(step-00000001\.corrupt, step-00000002\.corrupt, step-00000003\.corrupt\)"
    for resume in (folder / "step-00000003", None):
        with pytest.raises(CheckpointError, match=message):
            begin(job, resume)


def test_a_new_job_begins_from_nothing(tmp_path):
    assert begin(section(tmp_path), None) == [(0, 0, [])] * 2


@pytest.mark.parametrize("what", ["data", "model"])
def test_a_checkpoint_of_something_else_is_not_damaged(what, saved, monkeypatch):
    job, folder = saved
    if what == "data":
        job = job.model_copy(update={"data": job.data.model_copy(update={"seed": 1})})
    else:
        monkeypatch.setitem(globals(), "SPEC", tiny(tied=True, mlp=40))
    with pytest.raises(CheckpointError, match="trained on other data" if what == "data" else "holds another model"):
        begin(job, folder / "step-00000003")
    assert len(complete(folder)) == 3


def test_a_file_that_may_not_be_read_is_not_damaged(saved, monkeypatch):
    job, folder = saved

    def denied(path, framework):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("rayplane.model.checkpoint_source.safe_open", denied)
    with pytest.raises(CheckpointError, match="Permission denied; make it readable"):
        begin(job, folder / "step-00000003")
    assert len(complete(folder)) == 3
