"""AdamW's state on the host: the same training, bit for bit, and the same checkpoints."""

import pytest
import torch

from rayplane.spec.layout import Layout
from rayplane.spec.manifest import complete
from rayplane.train.offload import cut as cut_into_loads
from rayplane.train.threads import run_ranks

from .training import assert_equal, cut, make_rank, section, store, tiny, train

SPEC = tiny(tied=True)
LAYOUTS = {
    "serial": Layout(micro_batch=2),
    "dp2-zero1": Layout(dp=2, zero=1, micro_batch=2),
    "dp2-zero3": Layout(dp=2, zero=3, micro_batch=2),
    "pp2-tp2-sp": Layout(pp=2, tp=2, sp=True, micro_batch=2),
}


def job(folder, offload=True, **changes):
    plain = section(folder, **changes)
    return plain.model_copy(update={"optimizer": plain.optimizer.model_copy(update={"offload": offload})})


@pytest.fixture
def many_loads(monkeypatch):
    """Else these models fit into one; some of their weights have more elements than this."""
    monkeypatch.setattr("rayplane.train.offload.LOAD_ELEMENTS", 500)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_is_the_same_to_the_bit(layout, precision, tmp_path):
    there, here = (train(SPEC, LAYOUTS[layout], job(tmp_path, offload, precision=precision)) for offload in (True, False))
    assert (there.losses, there.norms, there.holdout) == (here.losses, here.norms, here.holdout)
    assert there.tensors.keys() == here.tensors.keys()
    assert all(torch.equal(there.tensors[name], tensor) for name, tensor in here.tensors.items())
    assert min(here.norms) > 0.5, "clipping bites"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_many_loads_give_the_same(precision, many_loads, tmp_path):
    """But for the last bit: the ends of a load that was cut are not computed by vector instructions."""
    runs = [train(SPEC, LAYOUTS["dp2-zero1"], job(tmp_path, offload, precision=precision)) for offload in (True, False)]
    assert_equal(*runs, tolerance=1e-6)


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_does_not_know_whether_it_was_offloaded(first, tmp_path):
    """Two steps one way and two the other are four steps."""
    layout = Layout(dp=2, zero=1, micro_batch=2)
    straight = train(SPEC, layout, job(tmp_path, not first, steps=4))

    def body(mesh):
        rank = make_rank(SPEC, job(tmp_path, first, steps=4), mesh)
        for _ in range(2):
            rank.step(drain=False)
        rank.start_save(store(mesh, SPEC, job(tmp_path))).result()

    run_ranks(cut(SPEC, layout), body)
    newest = complete(tmp_path / "run")[-1]
    resumed = train(
        SPEC, layout, job(tmp_path, not first, steps=4), lambda rank: rank.resume(store(rank.mesh, SPEC, job(tmp_path)), newest)
    )
    assert resumed.losses == straight.losses[2:]
    assert all(torch.equal(resumed.tensors[name], tensor) for name, tensor in straight.tensors.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_state_has_memory_of_its_own(precision, tmp_path):
    """Three tensors of four bytes per parameter beside the weights, of which fp32 training without offload has two."""

    def body(mesh):
        kept = []
        for offload in (True, False):
            rank = make_rank(SPEC, job(tmp_path, offload, precision=precision), mesh)
            rank.step(drain=False)
            device = {x.untyped_storage().data_ptr() for w in rank.weights for x in (w, w.main_grad)}
            state = {s.untyped_storage().data_ptr(): s.nbytes for shard in rank.optimizer._shards for s in shard.states}
            kept.append(sum(size for pointer, size in state.items() if pointer not in device))
        return kept

    ((offloaded, plain),) = run_ranks(cut(SPEC, Layout(micro_batch=8)), body)
    assert offloaded == 12 * SPEC.num_params
    assert plain == (8 if precision == "fp32" else 12) * SPEC.num_params


def test_loads_cover_every_row_once_and_are_no_larger_than_asked(many_loads, tmp_path):
    def body(mesh):
        shards = make_rank(SPEC, job(tmp_path), mesh).optimizer._shards
        loads = cut_into_loads(shards)
        return shards, loads, [sum(s.master.numel() for s in load) for load in loads]

    # The second rank's share begins within a weight.
    shards, loads, sizes = run_ranks(cut(SPEC, Layout(dp=2, zero=1, micro_batch=4)), body)[1]
    assert shards[0].rows.first > 0
    rows = [(id(s.rows.weight), row) for load in loads for s in load for row in range(s.rows.first, s.rows.last)]
    assert rows == [(id(s.rows.weight), row) for s in shards for row in range(s.rows.first, s.rows.last)]
    assert len(loads) > 4
    assert max(sizes) <= 500
