"""`rayplane check` finds layouts that do not compute what one device computes, and names where they part."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from rayplane.cli.app import app
from rayplane.model import transformer
from rayplane.spec.layout import Layout
from rayplane.spec.model import ModelSpec
from rayplane.train import check as check_module
from rayplane.train.check import compare, shrunk_layout, shrunk_model
from rayplane.train.gradients import Gradients

LLAMA = ModelSpec(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, vocab=128256)
TIED = ModelSpec(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, mlp=1536, vocab=49152, tied=True)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=8, pp=4, tp=8, micro_batch=4, zero=1, boundaries=(8, 9, 9, 6)),
        Layout(pp=2, tp=2, cp=4, sp=True, schedule="zb-h1", boundaries=(16, 16), micro_batch=1),
        Layout(dp=16, zero=3, shard=8, boundaries=(32,), micro_batch=2),
        Layout(dp=2, pp=2, vpp=2, schedule="zbv", recompute="full", boundaries=(8, 8, 8, 8), micro_batch=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("document_mask", [False, True], ids=["all", "documents"])
def test_layouts_are_equal(layout, document_mask):
    result = compare(LLAMA, layout, 65, document_mask)
    assert result.parts == []
    assert set(result.gradients) == {t.name for t in result.model.tensors()}
    assert result.layout.size <= 16


@pytest.mark.parametrize(("global_batch", "samples"), [(64, 16), (65, 15), (16, 4), (15, 3)])
def test_a_batch_that_does_not_divide_stays_one_that_does_not(global_batch, samples, monkeypatch):
    """Over 2 replicas with microbatches of 2: the last one is smaller, on one of them."""
    asked, job = [], check_module._job
    monkeypatch.setattr(check_module, "_job", lambda *args: asked.append(args[1]) or job(*args))
    assert compare(TIED, Layout(dp=4, pp=2, micro_batch=4, boundaries=(15, 15)), global_batch, document_mask=False).parts == []
    assert asked == [samples]


def test_a_lost_reduction_is_found_and_named(monkeypatch):
    monkeypatch.setattr(Gradients, "sum_tied", lambda self: None)
    result = compare(TIED, Layout(pp=2, micro_batch=2, boundaries=(15, 15)), 8, document_mask=False)
    assert {name for name, _ in result.parts} == {"embed", "gradient norm"}


@pytest.mark.parametrize(("spec", "document_mask"), [(replace(LLAMA, window=4096), False), (LLAMA, True)], ids=["window", "documents"])
def test_a_forgotten_mask_is_found(spec, document_mask, monkeypatch):
    """Where cp ranks see what one device does not."""
    mask = transformer.mask_of

    def forgetful(cp, seq, documents, window, band):
        return mask(cp, seq, None, 0, None) if cp.size > 1 else mask(cp, seq, documents, window, band)

    monkeypatch.setattr(transformer, "mask_of", forgetful)
    assert "loss" in dict(compare(spec, Layout(cp=2, boundaries=(32,)), 8, document_mask).parts)


def test_what_makes_layouts_go_wrong_is_kept():
    small = shrunk_layout(Layout(dp=64, pp=8, tp=2, boundaries=(0, 5, 5, 5, 5, 5, 5, 0), micro_batch=3))
    assert (small.dp, small.pp, small.tp, small.micro_batch) == (2, 4, 2, 2)
    spec = shrunk_model(TIED, small)
    assert (spec.heads, spec.kv_heads, spec.tied, spec.layers) == (9, 3, True, small.num_layers)
    assert shrunk_layout(Layout(pp=2, boundaries=(0, 9))).boundaries == (0, 2)
    islands, alone, all_of_them = (shrunk_layout(Layout(dp=32, zero=2, shard=n)) for n in (8, 1, 32))
    assert [(x.dp, x.shard_size) for x in (islands, alone, all_of_them)] == [(4, 2), (2, 1), (2, 2)]


def test_the_command_compares_the_jobs_own_layout():
    done = CliRunner().invoke(app, ["check", "jobs/reference.yaml", "--json"])
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (done.exit_code, answer["equal"], answer["ranks"]) == (0, True, 2)


def test_the_command_names_what_differs_and_exits_with_1(monkeypatch):
    answer = {"layout": "tp2", "ranks": 2, "layers": 1, "equal": False, "tolerance": 1e-4, "loss": 0.0, "norm": 0.5}
    answer |= {"gradients": {"embed": 0.5, "head": 0.0}, "parts": [["norm", 0.5], ["embed", 0.5]]}
    monkeypatch.setattr("rayplane.cli.check._ask", lambda question: answer)
    done = CliRunner().invoke(app, ["check", "jobs/reference.yaml"])
    assert done.exit_code == 1
    assert "they part in 2 places" in done.stdout
    assert "embed: 5.0e-01, allowed 0.0001" in done.stdout
