"""bf16: what is fp32 behind it, and how far its training strays from one device's."""

import pytest
import torch
import torch.nn.functional as F

from rayplane.model.context import Context, attend, mask_of
from rayplane.model.transformer import positions_of
from rayplane.spec.layout import Layout
from rayplane.spec.passes import build
from rayplane.train.threads import run_ranks

from .training import cut, make_rank, section, tiny, train

SPEC = tiny(tied=False)
EPSILON = 2.0**-8
"""Of bf16: rounding moves a number by at most this share of it."""


def test_gradients_of_microbatches_are_added_up_in_fp32_and_in_place(tmp_path):
    layout = cut(SPEC, Layout(micro_batch=1))

    def body(mesh):
        rank = make_rank(SPEC, section(tmp_path, precision="bf16"), mesh)
        batch, memory = rank._batch(), [w.main_grad.data_ptr() for w in rank.weights]

        def gradients(microbatches):
            rank._gradients[0].zero()
            rank._stage.run(build(layout, len(microbatches)).ranks[0], microbatches, 1.0, lambda losses: None)
            return [w.main_grad.clone() for w in rank.weights]

        each, together = [gradients([microbatch]) for microbatch in batch], gradients(batch)
        assert [w.main_grad.data_ptr() for w in rank.weights] == memory
        return [w.dtype for w in rank.weights], each, together

    ((dtypes, each, together),) = run_ranks(layout, body)
    assert set(dtypes) == {torch.bfloat16}
    in_bf16 = []
    for i, total in enumerate(together):
        parts = [gradients[i] for gradients in each]
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, torch.stack(parts).sum(0), rtol=1e-5, atol=1e-6 * total.abs().max().item())
        rough = sum((p.bfloat16() for p in parts), torch.zeros((), dtype=torch.bfloat16))
        in_bf16.append(((rough - total).abs().max() / total.abs().max()).item())
    assert max(in_bf16) > 1e-3, "bf16 would show"


def test_steps_too_small_for_bf16_are_kept_in_the_masters(tmp_path):
    """A step of 1e-6 is far below half the distance of two neighbours in bf16, so no weight of 1 would ever move."""
    plain = section(tmp_path, precision="bf16")
    job = plain.model_copy(update={"optimizer": plain.optimizer.model_copy(update={"lr": 1e-6, "eps": 1e-12, "schedule": "constant"})})

    def body(mesh):
        rank = make_rank(SPEC, job, mesh)
        for _ in range(3):
            rank.step(drain=False)
        norm = next(s for s in rank.optimizer._shards if s.rows.weight.parts[0].tensor.name == "norm")
        return norm.master, norm.rows.param

    ((master, weight),) = run_ranks(cut(SPEC, Layout(micro_batch=8)), body)
    assert torch.equal(weight, torch.ones_like(weight))
    assert 1e-6 < (master - 1).abs().median() <= 4e-6


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2, micro_batch=2),
        Layout(tp=2, sp=True, micro_batch=2),
        Layout(pp=2, micro_batch=2),
        Layout(pp=2, tp=2, sp=True, vpp=2, schedule="zbv", micro_batch=2),
        Layout(dp=2, zero=1, micro_batch=2),
    ],
    ids=str,
)
def test_a_layout_strays_from_serial_by_less_than_a_rounding_of_bf16(layout, tmp_path):
    """The loss of each step by a sixteenth of one, the gradient norm by half."""
    job = section(tmp_path, precision="bf16")
    serial, parallel = train(SPEC, Layout(micro_batch=8), job), train(SPEC, layout, job)
    assert parallel.losses == pytest.approx(serial.losses, rel=EPSILON / 16)
    assert parallel.norms == pytest.approx(serial.norms, rel=EPSILON / 2)


@pytest.mark.parametrize("method", ["ring", "gather"])
def test_attention_over_eight_ranks_is_as_exact_as_on_one(method):
    """Results of up to 16 tiles are merged in fp32, and so are their gradients: in bf16 the error would grow by a third at least."""
    generator, seq = torch.Generator().manual_seed(0), 128
    q, k, v, dout = (torch.randn(2, 3, seq, 16, generator=generator).bfloat16() for _ in range(4))

    def body(mesh):
        mine = positions_of(mesh.cp, seq, mesh.device)
        inputs = [x[:, :, mine].requires_grad_() for x in (q, k, v)]
        out = attend(*inputs, Context(mesh.cp, seq, mask_of(mesh.cp, seq, None, 0, None), None), method)
        return mine, (out.detach(), *torch.autograd.grad(out, inputs, dout[:, :, mine]))

    def in_one(dtype):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*inputs, is_causal=True)
        return out.detach(), *torch.autograd.grad(out, inputs, dout.to(dtype))

    cut_in_eight = [torch.empty_like(q) for _ in range(4)]
    for mine, parts in run_ranks(Layout(cp=8), body):
        for whole, part in zip(cut_in_eight, parts, strict=True):
            whole[:, :, mine] = part
    exact, one = in_one(torch.float32), in_one(torch.bfloat16)
    for ours, theirs, truth in zip(cut_in_eight, one, exact, strict=True):
        assert (ours - truth).square().mean() < 1.25**2 * (theirs - truth).square().mean()
