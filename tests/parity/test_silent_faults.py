"""Faults that others shipped without an error: wrong gradients, wrong losses, lost samples. Each has a test of its name here, but

a rank with only masked tokens        test_document_masks.py::test_a_replica_that_holds_only_masked_tokens_adds_nothing
zero-bubble schedules under ZeRO      test_layouts.py::test_zero_with_a_split_backward_reduces_after_the_weights_half
a newest checkpoint not yet on disk   test_resume.py::test_a_checkpoint_has_its_name_once_all_of_it_is_on_disk
"""

import math
from pathlib import Path

import pytest
import torch

from rayplane.spec.job import OptimizerSection
from rayplane.spec.layout import Layout
from rayplane.spec.manifest import complete
from rayplane.spec.sharding import tp_chunk
from rayplane.train.data import Dataset, open_dataset
from rayplane.train.init import initial
from rayplane.train.threads import run_ranks

from . import reference
from .training import assert_equal, cut, make_rank, section, store, tiny, train

TIED, UNTIED = tiny(tied=True), tiny(tied=False)
BETA1 = OptimizerSection().beta1


def one_step(spec, layout, folder, clip=0.0, **changes):
    """A step from zero moments."""
    return train(spec, layout, section(folder, steps=1, optimizer=OptimizerSection(clip=clip, eps=1e-3), **changes))


def gradients(run):
    """Whole gradients by name: after one step a first moment is 1 - beta1 of them."""
    found = {name.removeprefix("exp_avg/"): t / (1 - BETA1) for name, t in run.tensors.items() if name.startswith("exp_avg/")}
    assert all(g.abs().max() > 0 for g in found.values())
    return found


def assert_same_step(spec, layouts, folder, **changes):
    """Loss, norm, and every gradient of one step are those of one device with one microbatch."""
    expected = one_step(spec, Layout(micro_batch=8), folder, **changes)
    gradients(expected)
    for layout in layouts:
        assert_equal(one_step(spec, layout, folder, **changes), expected)


@pytest.mark.parametrize("layout", [Layout(pp=2, tp=2, micro_batch=2), Layout(pp=2, tp=2, sp=True, micro_batch=2)], ids=str)
def test_clipping_under_pp_and_tp_divides_by_the_norm_of_the_whole_model(layout, tmp_path):
    """Where a rank clips by what it holds, or counts twice what two hold, directions change."""
    free = gradients(one_step(TIED, layout, tmp_path))
    norm = math.sqrt(sum(g.double().square().sum().item() for g in free.values()))
    clipped = one_step(TIED, layout, tmp_path, clip=norm / 3)
    assert clipped.norms == [pytest.approx(norm, rel=1e-5)]
    for name, gradient in gradients(clipped).items():
        torch.testing.assert_close(gradient, free[name] / 3, rtol=1e-5, atol=1e-8)


def test_uneven_microbatches_weigh_as_many_tokens_as_they_have(tmp_path):
    """A mean of means is no mean (torchtitan#2972): 8 samples as 3 + 3 + 2, over stages, replicas and both."""
    layouts = [Layout(micro_batch=3), Layout(pp=2, micro_batch=3), Layout(dp=3, micro_batch=2), Layout(dp=3, zero=3, micro_batch=2)]
    assert_same_step(UNTIED, layouts, tmp_path)


def test_tp_leaves_the_loss_as_plain_torch_has_it(tmp_path):
    """Not so elsewhere (torchtitan#1750, #3412); here over a vocabulary of 61 rows, which do not divide."""
    job = section(tmp_path, steps=1)
    dataset = open_dataset(job.data, Path(), tmp_path, UNTIED.vocab)
    weights = {t.name: initial(t, tp_chunk(t, 1, 0), job.seed) for t in UNTIED.tensors()}
    ids, targets = (torch.from_numpy(a.copy()) for a in dataset.batch(range(job.global_batch)))
    loss = reference.mean_loss(UNTIED, weights, (ids, targets)).item()
    for layout in (Layout(tp=2, micro_batch=3), Layout(tp=3, sp=True, micro_batch=3), Layout(tp=2, pp=2, sp=True, micro_batch=8)):
        assert one_step(UNTIED, layout, tmp_path).losses == [pytest.approx(loss, rel=1e-5)]


@pytest.mark.parametrize("document_mask", [False, True])
def test_cp_does_not_scale_loss_or_gradients(document_mask, tmp_path):
    """Megatron-LM#673: means over what a cp rank holds, summed as if they were replicas'; here with microbatches of 3 + 3 + 2."""
    layouts = [Layout(cp=2, micro_batch=3), Layout(cp=3, micro_batch=3, cp_method="gather"), Layout(dp=2, cp=2, micro_batch=3)]
    assert_same_step(UNTIED, layouts, tmp_path, document_mask=document_mask)


def test_a_tied_embedding_under_pp_gets_the_gradients_of_both_ends(tmp_path):
    layouts = [Layout(pp=2, micro_batch=2), Layout(pp=3, tp=2, micro_batch=4), Layout(dp=2, pp=2, zero=2, micro_batch=2)]
    assert_same_step(TIED, layouts, tmp_path)


@pytest.mark.parametrize(("schedule", "vpp"), [("zb-h1", 1), ("zbv", 2)])
def test_zero_bubble_counts_a_shared_weight_once(schedule, vpp, tmp_path):
    """Twice elsewhere (pytorch#180952), once with the input's half and once with the weights'. Under zbv both ends are on one stage."""
    layouts = [Layout(pp=2, vpp=vpp, schedule=schedule, micro_batch=n) for n in (1, 3)]
    assert_same_step(TIED, layouts, tmp_path)


@pytest.mark.parametrize(("schedule", "vpp"), [("zb-h1", 1), ("zbv", 2)])
def test_zero_bubble_reduces_over_replicas(schedule, vpp, tmp_path):
    """Not at all elsewhere (pytorch#144530): what tells a replica that gradients are complete runs in neither half."""
    assert_same_step(UNTIED, [Layout(dp=2, pp=2, vpp=vpp, schedule=schedule, micro_batch=2)], tmp_path)


@pytest.mark.parametrize("vpp", [2, 3])
def test_interleaving_on_two_stages_tells_the_next_from_the_previous(vpp, tmp_path):
    """On two stages they are the same rank, and only tags tell the messages apart (Megatron-LM#750: a wrong loss and no error)."""
    layouts = [Layout(pp=2, vpp=vpp, schedule="interleaved", micro_batch=n) for n in (1, 2, 3)]
    assert_same_step(tiny(tied=False, layers=6), layouts, tmp_path)


def test_layers_that_do_not_divide_are_all_trained(tmp_path):
    """The last ones were dropped elsewhere (Megatron-LM#1304)."""
    layouts = [
        Layout(pp=2, micro_batch=2),
        Layout(pp=3, micro_batch=2),
        Layout(pp=2, vpp=2, schedule="interleaved", micro_batch=2),
        Layout(pp=2, vpp=2, schedule="zbv", micro_batch=2),
    ]
    assert_same_step(tiny(tied=False, layers=5), layouts, tmp_path)


def test_norms_under_sp_get_the_gradient_of_all_tokens(tmp_path):
    """Each rank's own tokens' elsewhere (Megatron-LM#1446). Of norms of heads each rank has a part without sp too."""
    layouts = [Layout(tp=2, sp=True, micro_batch=2), Layout(tp=3, sp=True, micro_batch=3), Layout(tp=2, micro_batch=2)]
    assert_same_step(tiny(tied=False, qk_norm=True), layouts, tmp_path)
    assert_same_step(tiny(tied=False, norm="layernorm"), layouts, tmp_path)


@pytest.mark.parametrize("cp", [2, 3])
def test_backward_round_the_ring_uses_the_keys_that_travel(cp, tmp_path):
    """A rank's own in every round elsewhere (diffusers#14265): forward is right, and the gradients of q, k and v are not."""
    assert_same_step(UNTIED, [Layout(cp=cp, micro_batch=2, recompute=r) for r in ("none", "full")], tmp_path)


@pytest.mark.parametrize("layout", [Layout(pp=2, micro_batch=3), Layout(pp=2, vpp=2, schedule="zbv", micro_batch=3)], ids=str)
def test_shapes_of_microbatches_may_change_between_steps(layout, tmp_path):
    """3 + 3 + 2 samples in training, 3 + 3 + 1 held out between two steps, and other documents in each."""
    job = section(tmp_path, document_mask=True)

    def body(mesh):
        rank, held_out, losses = make_rank(UNTIED, job, mesh), [], []
        for _ in range(3):
            losses.append(rank.step(drain=False)[0].loss)
            held_out.append(rank.evaluate())
        return losses, held_out

    ((losses, held_out),) = run_ranks(cut(UNTIED, Layout(micro_batch=8)), body)
    for got in run_ranks(cut(UNTIED, layout), body):
        assert got == (pytest.approx(losses, rel=1e-5), pytest.approx(held_out, rel=1e-5))
    assert held_out == sorted(held_out, reverse=True), "it learns"


def test_no_sample_is_lost_or_seen_twice_when_dp_changes(tmp_path, monkeypatch):
    """The stream began anew elsewhere (Megatron-Bridge#5637): 8 samples a step over 1, 3 and 2 replicas and 2 cp ranks."""
    job, sample, seen = section(tmp_path, steps=4), Dataset.sample, []

    def watched(dataset, index):
        seen.append(index)
        return sample(dataset, index)

    monkeypatch.setattr(Dataset, "sample", watched)
    for steps, layout in enumerate([Layout(micro_batch=3), Layout(dp=3, micro_batch=1), Layout(dp=2, zero=3), Layout(cp=2)], 1):

        def body(mesh, steps=steps):
            rank, checkpoints = make_rank(UNTIED, job, mesh), store(mesh, UNTIED, job)
            if steps > 1:
                rank.resume(checkpoints, complete(tmp_path / "run")[-1])
            rank.step(drain=False)
            rank.start_save(checkpoints).result()

        seen.clear()
        run_ranks(cut(UNTIED, layout), body)
        assert sorted(seen) == sorted([*range(8 * steps - 8, 8 * steps)] * layout.cp)
