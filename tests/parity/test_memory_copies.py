"""Copies in the hosts' memory: whatever host is lost with its copies, and under whatever layout, training goes on as if nothing was.

A host is a folder: ranks that are given the same one share their memory.
"""

import shutil
import threading

import pytest
import torch

from rayplane.errors import RayplaneError
from rayplane.spec.layout import Layout
from rayplane.spec.manifest import complete
from rayplane.train import memory as memory_module
from rayplane.train.memory import Memory
from rayplane.train.ram_folder import RamFolder
from rayplane.train.recover import recover
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, store, tiny, train

SPEC = tiny(tied=True)
FOUR = Layout(dp=2, pp=2, zero=1, micro_batch=2)


def host_of(ram, rank, hosts):
    """The memory of a rank's host; `hosts` has a letter for each rank."""
    return ram / f"rayplane-{hosts[rank]}"


def run_part(layout, hosts, job, folder, steps, disk_step=None):
    """Go on from what is there, copy after every step up to `steps`; by rank (step it began with, losses, what it says)."""
    (folder / "ram").mkdir(exist_ok=True)

    def body(mesh):
        rank, checkpoints = make_rank(SPEC, job, mesh), store(mesh, SPEC, job)
        ram = RamFolder.open(host_of(folder / "ram", mesh.rank, hosts), folder / ".run.lock")
        memory = Memory.open(ram, SPEC, mesh, rank.optimizer.tensors())
        said = recover(rank, checkpoints, memory, disk_step)
        began, losses = rank.progress.step, []
        for _ in range(began, steps):
            losses.append(rank.step(drain=False)[0].loss)
            assert not memory.start_save(rank.progress, rank.optimizer.tensors()).result()
        ram.close()
        return began, losses, said

    return run_ranks(cut(SPEC, layout), body)


def copies(folder, host):
    return sorted(p.name for p in complete(folder / "ram" / f"rayplane-{host}"))


@pytest.mark.parametrize(
    ("hosts", "lost", "layout", "later", "begins"),
    [
        ("aaaa", "", Layout(tp=2, micro_batch=4), "aa", 2),
        ("aabb", "b", FOUR, "aabb", 2),
        ("aabb", "a", FOUR, "aabb", 2),
        ("aabb", "a", Layout(micro_batch=8), "b", 2),
        ("abab", "a", Layout(dp=3, tp=2, sp=True, zero=1, micro_batch=2), "aaabbb", 2),
        ("aabc", "b", Layout(pp=2, micro_batch=2), "ca", 2),
        ("aabc", "ca", Layout(pp=2, micro_batch=2), "ba", 0),
    ],
)
def test_whatever_host_is_lost_training_goes_on_from_the_newest_copy(hosts, lost, layout, later, begins, tmp_path):
    """Two neighbours lost at once are one too many: then nothing is made up."""
    job = section(tmp_path, steps=4)
    straight = train(SPEC, Layout(micro_batch=8), job).losses
    first = run_part(FOUR, hosts, job, tmp_path, 2)
    for host in lost:
        shutil.rmtree(tmp_path / "ram" / f"rayplane-{host}")
    again = run_part(layout, later, job, tmp_path, 4)
    assert [(began, said) for began, _, said in again] == [(begins, [])] * layout.size
    assert first[0][1][:begins] + again[0][1] == pytest.approx(straight, rel=1e-6)


def test_the_disk_is_used_where_it_is_newer_and_old_copies_go(tmp_path):
    job = section(tmp_path, steps=4)
    run_part(FOUR, "aabb", job, tmp_path, 1)

    def save(mesh):
        rank = make_rank(SPEC, job, mesh)
        for _ in range(2):
            rank.step(drain=False)
        return rank.start_save(store(mesh, SPEC, job)).result()

    (disk,) = run_ranks(cut(SPEC, Layout(micro_batch=8)), save)
    assert run_part(FOUR, "aabb", job, tmp_path, 2, disk)[0] == (2, [], [])
    assert copies(tmp_path, "a") == copies(tmp_path, "b") == []


def test_one_copy_is_kept_and_another_made_beside_training(tmp_path, monkeypatch):
    """While a copy is made the one before stays; a save that was cut off never counts, and what it left is removed."""
    job, commit, release = section(tmp_path, steps=4), memory_module._commit, threading.Event()
    run_part(FOUR, "aabb", job, tmp_path, 2)
    assert copies(tmp_path, "a") == copies(tmp_path, "b") == ["step-00000002"]

    def slow(temporary, final, manifest):
        assert release.wait(20)
        if final.parent.name.endswith("b"):
            raise OSError(28, "No space left on device")
        commit(temporary, final, manifest)

    monkeypatch.setattr(memory_module, "_commit", slow)

    def body(mesh):
        rank, checkpoints = make_rank(SPEC, job, mesh), store(mesh, SPEC, job)
        folder = RamFolder.open(host_of(tmp_path / "ram", mesh.rank, "aabb"), tmp_path / ".run.lock")
        memory = Memory.open(folder, SPEC, mesh, rank.optimizer.tensors())
        recover(rank, checkpoints, memory, None)
        rank.step(drain=False)
        copying = memory.start_save(rank.progress, rank.optimizer.tensors())
        rank.step(drain=False)
        unfinished = not copying.done() and folder.steps() == [folder.path / "step-00000002"]
        mesh.world.all_reduce(torch.zeros(1))
        release.set()
        return unfinished, copying.result(), rank.progress.step

    for unfinished, problem, step in run_ranks(cut(SPEC, FOUR), body):
        assert unfinished and step == 4 and problem.startswith("rank 2: ") and "No space left" in problem
    assert copies(tmp_path, "a") == copies(tmp_path, "b") == ["step-00000002"]
    assert not list((tmp_path / "ram").rglob(".step-*"))
    monkeypatch.undo()
    assert run_part(FOUR, "aabb", job, tmp_path, 2)[0][0] == 2


def test_a_damaged_copy_is_said_and_the_disk_is_used(tmp_path):
    job = section(tmp_path, steps=4)

    def save(mesh):
        rank = make_rank(SPEC, job, mesh)
        rank.step(drain=False)
        return rank.start_save(store(mesh, SPEC, job)).result()

    (disk,) = run_ranks(cut(SPEC, Layout(micro_batch=8)), save)
    assert run_part(FOUR, "aaaa", job, tmp_path, 2, disk)[0][0] == 1
    file = tmp_path / "ram" / "rayplane-a" / "step-00000002" / "rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"oops")
    for began, losses, said in run_part(FOUR, "aaaa", job, tmp_path, 2, disk):
        assert (began, len(losses)) == (1, 1)
        assert len(said) == 1 and said[0].startswith("the copy of step 2 in memory cannot be used: ") and "rank-00001" in said[0]


def test_too_little_room_is_said_on_every_rank_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(RamFolder, "room_bytes", lambda folder: 64_000_000 if folder.path.name.endswith("a") else 1_000)
    with pytest.raises(RayplaneError, match=r"memory_dir: .* on the host of ranks 2, 3 has room for 0 MB, and two copies there need"):
        run_part(FOUR, "aabb", section(tmp_path), tmp_path, 1)


def test_memory_that_is_full_later_leaves_the_older_copy(tmp_path, monkeypatch):
    job = section(tmp_path, steps=4)
    run_part(FOUR, "aabb", job, tmp_path, 1)

    def full(path, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory_module, "reserve", full)
    with pytest.raises(AssertionError, match="No space left on device"):
        run_part(FOUR, "aabb", job, tmp_path, 2)
    assert copies(tmp_path, "a") == copies(tmp_path, "b") == ["step-00000001"]
