"""On GPUs: the same steps as on a CPU, NCCL in place of gloo, one GPU per rank."""

import pytest
import torch

from rayplane.spec.layout import Layout
from rayplane.train.threads import run_ranks
from tests.parity.training import assert_equal, section, tiny, train

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
