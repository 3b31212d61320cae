"""Calibration's probes run what a training step runs, on ranks that are cut as in training."""

import pytest

from rayplane.spec.layout import Layout
from rayplane.train.kernel_probes import PROBES
from rayplane.train.network_probes import OPS, collectives, messages
from rayplane.train.stopwatch import Stopwatch
from rayplane.train.threads import run_ranks

SHAPE = {"hidden": 24, "heads": 3, "kv_heads": 3, "head_dim": 8, "mlp": 50, "samples": 2, "seq_len": 9}
SIZES = [64, 4096]


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_layers_are_measured_whole_and_cut(tp, cp, precision):
    """Heads and tokens that do not divide too."""
    row = {"precision": precision, **SHAPE, "tp": tp, "cp": cp}
    for seconds in run_ranks(Layout(cp=cp, tp=tp), lambda mesh: PROBES["layers"](row, mesh, Stopwatch(mesh.device, 0.0))):
        assert seconds["forward_s"] > 0
        assert seconds["backward_s"] > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_larger_products_take_longer(precision):
    small, large = (_product(precision, tokens) for tokens in (16, 1024))
    assert all(large[name] > small[name] for name in ("forward_s", "input_grad_s", "weight_grad_s"))


def test_the_optimizer_says_how_many_parameters_it_has_updated():
    row = {"params": 8_000_000}
    (measured,) = run_ranks(Layout(), lambda mesh: PROBES["optimizer"](row, mesh, Stopwatch(mesh.device, 0.0)))
    assert 7_000_000 < measured["params"] < 9_000_000


def test_every_operation_is_measured_at_every_size_on_every_rank():
    rows = run_ranks(Layout(tp=2), lambda mesh: list(collectives(mesh.tp, SIZES, mesh, Stopwatch(mesh.device, 0.0))))
    for of in rows:
        assert [(row["op"], row["bytes"]) for row in of] == [(op, size) for op in OPS for size in SIZES]
        assert all(row["seconds"] > 0 for row in of)
    rows = run_ranks(Layout(pp=2), lambda mesh: list(messages(mesh, SIZES, Stopwatch(mesh.device, 0.0))))
    assert [[row["bytes"] for row in of] for of in rows] == [SIZES, SIZES]


def _product(precision, tokens):
    row = {"precision": precision, "tokens": tokens, "rows": 256, "columns": 256}
    (seconds,) = run_ranks(Layout(), lambda mesh: PROBES["products"](row, mesh, Stopwatch(mesh.device, 0.02)))
    return seconds
