"""On GPUs: the same steps as on a CPU, NCCL in place of gloo, one GPU per rank."""

import pytest
import torch

from rayplane.model.dense import dense, dense_backward
from rayplane.model.flash import flash, flash_backward
from rayplane.spec.layout import Layout
from rayplane.train.flat import Rows
from rayplane.train.offload import Offload
from rayplane.train.state import Shard
from rayplane.train.threads import run_ranks
from tests.model.test_flash import SHAPES, tile
from tests.parity.training import assert_equal, cut, make_rank, section, tiny, train

NUM_GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(NUM_GPUS == 0, reason="no CUDA device")
SPEC = tiny(tied=True)
LAYOUTS = {
    "serial": Layout(micro_batch=2),
    "tp2": Layout(tp=2, micro_batch=2),
    "pp2": Layout(pp=2, micro_batch=2),
    "dp2": Layout(dp=2, micro_batch=2),
    "pp2-tp2": Layout(pp=2, tp=2, micro_batch=2),
    "dp2-pp2": Layout(dp=2, pp=2, micro_batch=3),
}


def needs(size):
    return pytest.mark.skipif(size > NUM_GPUS, reason=f"needs {size} GPUs, found {NUM_GPUS}")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    return train(SPEC, Layout(micro_batch=2), section(tmp_path_factory.mktemp("cpu")))


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs(layout.size)) for n, layout in LAYOUTS.items()])
def test_gpu_step_equals_cpu_step(name, on_cpu, tmp_path):
    torch.backends.cuda.matmul.allow_tf32 = False
    assert_equal(train(SPEC, LAYOUTS[name], section(tmp_path), device="cuda"), on_cpu, tolerance=1e-4)


def test_masks_on_a_gpu_equal_those_on_a_cpu(tmp_path):
    """Documents under a window, in fp32: the kernels written out."""
    torch.backends.cuda.matmul.allow_tf32 = False
    spec, job = tiny(tied=True, window=4), section(tmp_path, document_mask=True)
    on_cpu = train(spec, Layout(micro_batch=2), job)
    assert_equal(train(spec, Layout(micro_batch=2), job, device="cuda"), on_cpu, tolerance=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_fused_kernel_sees_what_is_written_out(shape):
    """In bf16, forward and backward, whole and at the edges of a window."""
    queries, keys, left, right = SHAPES[shape]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 64, device="cuda", dtype=torch.bfloat16) for n in (queries, keys, keys))
    expected, lse = dense(q, k, v, left, right)
    inputs = (torch.randn_like(q), q, k, v, expected, lse)
    got = (*flash(q, k, v, tile(*SHAPES[shape]), None), *flash_backward(inputs, tile(*SHAPES[shape]), None))
    for ours, theirs in zip(got, (expected, lse, *dense_backward(inputs, left, right)), strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)


def test_phases_are_read_from_the_stream_and_sum_to_the_step():
    def body(mesh):
        x = torch.randn(2048, 2048, device=mesh.device)
        mesh.clock.start()
        with mesh.clock.phase("forward"):
            for _ in range(20):
                x = (x @ x).tanh()
        phases = mesh.clock.take()
        return phases["forward"] / sum(phases.values())

    assert run_ranks(Layout(), body, device="cuda")[0] > 0.9


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["serial", pytest.param("dp2-zero1", marks=needs(2))])
def test_offloaded_steps_equal_those_on_the_gpu(name, precision, tmp_path, monkeypatch):
    """In many loads, so that both buffers of each direction are used over and over."""
    monkeypatch.setattr("rayplane.train.offload.LOAD_ELEMENTS", 500)
    layout = {"serial": Layout(micro_batch=2), "dp2-zero1": Layout(dp=2, zero=1, micro_batch=2)}[name]
    plain = section(tmp_path, steps=6, precision=precision)
    offload = plain.model_copy(update={"optimizer": plain.optimizer.model_copy(update={"offload": True})})
    assert_equal(
        *(train(SPEC, layout, job, device="cuda") for job in (offload, plain)), tolerance=1e-5 if precision == "fp32" else 1e-2
    )


def test_an_offloaded_update_is_the_same_whatever_else_the_gpu_does(tmp_path, monkeypatch):
    """A gradient that is late on the compute stream is waited for, and what comes behind the update sees its weights."""
    monkeypatch.setattr("rayplane.train.offload.LOAD_ELEMENTS", 1 << 20)
    weights = [torch.nn.Parameter(torch.ones(1 << 12, 1 << 8, device="cuda")) for _ in range(6)]
    rows = [Rows(w, 0, 1 << 12, w.detach(), torch.zeros_like(w)) for w in weights]
    shards = [Shard(r, tuple(torch.full(r.param.shape, x) for x in (1.0, 0.0, 0.0)), 0, 1) for r in rows]
    offload = Offload(shards, torch.device("cuda"))
    for step in range(1, 4):
        torch.cuda._sleep(50_000_000)
        for r in rows:
            r.grad.fill_(step)
        for load, grads in offload.loads():
            for shard, grad in zip(load, grads, strict=True):
                assert grad.unique().tolist() == [step]
                shard.master.add_(grad)
        seen = [r.param.clone() for r in rows]
        assert {x for copy in seen for x in copy.unique().tolist()} == {1 + step * (step + 1) / 2}


def test_offload_leaves_weights_and_gradients_on_the_gpu(tmp_path):
    spec = tiny(tied=False, hidden=512, vocab=4096)
    plain = section(tmp_path)

    def allocated(offload):
        job = plain.model_copy(update={"optimizer": plain.optimizer.model_copy(update={"offload": offload})})

        def body(mesh):
            before = torch.cuda.memory_allocated()
            rank = make_rank(spec, job, mesh)
            rank.step(drain=False)
            rank._stage._losses = []
            return torch.cuda.memory_allocated() - before

        return run_ranks(cut(spec, Layout(micro_batch=8)), body, device="cuda")[0]

    assert allocated(False) - allocated(True) == pytest.approx(8 * spec.num_params, rel=0.05)


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, found {NUM_GPUS}")
@pytest.mark.parametrize("rows", [8, 7])
def test_nccl_halves_make_the_whole(rows):
    sizes = [(rows + 1) // 2, rows // 2]

    def body(mesh):
        x = torch.full((rows, 3), float(mesh.rank + 1), device=mesh.device)
        whole = mesh.tp.all_gather(mesh.tp.reduce_scatter(x, sizes), sizes)
        return whole.cpu(), mesh.tp.all_reduce(x).cpu()

    for whole, reduced in run_ranks(Layout(tp=2), body, device="cuda"):
        assert torch.equal(whole, reduced)
