"""Calibration's probes on CUDA devices, where there are any."""

import pytest
import torch

from rayplane.spec.layout import Layout
from rayplane.train.kernel_probes import PROBES
from rayplane.train.network_probes import collectives, messages
from rayplane.train.stopwatch import Stopwatch
from rayplane.train.threads import run_ranks

SHAPE = {"hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "mlp": 512, "tp": 1, "cp": 1, "samples": 2, "seq_len": 128}
ROWS = {
    "products": {"precision": "bf16", "tokens": 512, "rows": 512, "columns": 256},
    "attention": {"precision": "bf16", "samples": 2, "seq_len": 128, "heads": 4, "head_dim": 64},
    "layers": {"precision": "bf16", **SHAPE},
    "heads": {"precision": "bf16", "hidden": 256, "vocab": 1000, "tokens": 512},
    "memory": {"bytes": 1 << 24},
    "optimizer": {"params": 8_000_000},
}
SIZES = [1 << 12, 1 << 20]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("kind", list(ROWS))
def test_kernels_are_measured(kind):
    (seconds,) = run_ranks(Layout(), lambda mesh: PROBES[kind](ROWS[kind], mesh, Stopwatch(mesh.device, 0.01)), "cuda")
    assert seconds
    assert all(value > 0 for value in seconds.values())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_collectives_and_messages_are_measured():
    def tp(mesh):
        return list(collectives(mesh.tp, SIZES, mesh, Stopwatch(mesh.device, 0.01)))

    def pp(mesh):
        return list(messages(mesh, SIZES, Stopwatch(mesh.device, 0.01)))

    for layout, body, count in ((Layout(tp=2), tp, 6), (Layout(pp=2), pp, 2)):
        for rows in run_ranks(layout, body, "cuda"):
            assert len(rows) == count
            assert all(row["seconds"] > 0 for row in rows)
