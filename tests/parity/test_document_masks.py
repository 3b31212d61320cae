"""Documents in one sample do not see each other, a window ends where it should, and the mean is over the targets that count."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayplane.errors import DataError
from rayplane.model.loss import IGNORED
from rayplane.model.transformer import positions_of
from rayplane.spec.job import OptimizerSection
from rayplane.spec.layout import Layout
from rayplane.spec.sharding import tp_chunk
from rayplane.train import rank as rank_module
from rayplane.train.data import Dataset, open_dataset
from rayplane.train.init import initial
from rayplane.train.microbatch import Microbatch
from rayplane.train.threads import run_ranks

from . import reference
from .training import SEQ_LEN, VOCAB, assert_equal, cut, make_rank, section, tiny, train

GPT2 = {"norm": "layernorm", "positions": "learned", "act": "gelu", "qkv_bias": True, "o_bias": True, "mlp_bias": True}
MODELS = {"llama": tiny(tied=True), "gpt2": tiny(**GPT2, max_seq=SEQ_LEN), "window": tiny(tied=False, window=3)}
LAYOUTS = {
    "microbatches": Layout(micro_batch=3),
    "tp3-sp-uneven": Layout(tp=3, sp=True, micro_batch=3),
    "pp2-uneven-microbatches": Layout(pp=2, micro_batch=3),
    "pp2-zbv": Layout(pp=2, vpp=2, micro_batch=1, schedule="zbv"),
    "dp3-zero1": Layout(dp=3, zero=1, micro_batch=2),
    "dp3-zero3": Layout(dp=3, zero=3, micro_batch=2),
    "cp2-ring": Layout(cp=2, micro_batch=2),
    "cp3-gather": Layout(cp=3, micro_batch=2, cp_method="gather"),
    "cp2-tp2-sp": Layout(cp=2, tp=2, sp=True, micro_batch=3),
    "cp2-tp2-gather-recompute-full": Layout(cp=2, tp=2, micro_batch=2, cp_method="gather", recompute="full"),
    "dp2-cp2-recompute-selective": Layout(dp=2, cp=2, micro_batch=1, recompute="selective"),
    "pp2-cp2-1f1b": Layout(pp=2, cp=2, micro_batch=2),
}


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Each model on one device, computed once."""
    runs = {}

    def get(name, document_mask=True):
        if (name, document_mask) not in runs:
            job = section(tmp_path_factory.mktemp("serial"), document_mask=document_mask)
            runs[name, document_mask] = train(MODELS[name], Layout(micro_batch=8), job)
        return runs[name, document_mask]

    return get


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_documents_are_kept_apart_in_every_layout(layout, model, serial, tmp_path):
    assert_equal(train(MODELS[model], LAYOUTS[layout], section(tmp_path, document_mask=True)), serial(model))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "cp" in name])
def test_a_window_is_right_where_the_sequence_is_cut(layout, serial, tmp_path):
    assert_equal(train(MODELS["window"], LAYOUTS[layout], section(tmp_path)), serial("window", document_mask=False))


def test_masks_change_what_is_learnt(serial):
    """Else the layouts above would agree on masks that do nothing."""
    assert serial("window").losses != serial("window", document_mask=False).losses
    assert serial("llama").losses != pytest.approx(serial("llama", document_mask=False).losses, rel=1e-3)


def gradients_of(rank):
    """Whole gradients of one device's last step, in which clipping must be off: it happens in place."""
    return {p.name: p.data.clone() for p in rank.optimizer.gradients()}


def assert_same_gradients(got, expected, tolerance=1e-5):
    assert got.keys() == expected.keys()
    floor = 1e-3 * max(g.abs().max().item() for g in expected.values())
    for name, gradient in expected.items():
        difference = (got[name] - gradient).abs().max().item()
        assert difference <= tolerance * max(gradient.abs().max().item(), floor), name


@pytest.mark.parametrize("model", MODELS)
def test_packed_documents_equal_documents_run_alone(model, tmp_path):
    """Loss and every gradient, as a mean over the targets within documents; learned positions begin anew in each."""
    spec, job = MODELS[model], section(tmp_path, document_mask=True, optimizer=OptimizerSection())

    def alone(row, first, after):
        ids, targets = (torch.from_numpy(row[None, a:b].copy()) for a, b in ((first, after - 1), (first + 1, after)))
        return Microbatch(ids, targets, after - first - 1, after - first - 1, None)

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        dataset = rank._dataset
        documents = []
        for k in range(job.global_batch):
            borders = sorted({0, *dataset.starts(k).tolist(), SEQ_LEN + 1})
            pairs = pairwise(borders)
            documents += [alone(dataset.sample(k), a, b) for a, b in pairs if b - a > 1]
        counted = sum(d.counted for d in documents)
        report, _ = rank.step(drain=False)
        packed = gradients_of(rank)
        other = make_rank(spec, job, mesh)
        chunk, loss = other.chunks[0], 0.0
        for document in documents:
            y = chunk(document.ids, 1, document.seq)
            part = chunk.head.loss(y, document.targets.flatten(), 1.0 / counted)
            part.backward()
            loss += part.item()
        return report, packed, loss, gradients_of(other), counted

    ((report, packed, loss, separate, counted),) = run_ranks(cut(spec, Layout(micro_batch=3)), body)
    assert 0 < counted < job.global_batch * SEQ_LEN
    assert report.loss == pytest.approx(loss, rel=1e-6)
    assert report.grad_norm == pytest.approx(math.sqrt(sum(g.square().sum().item() for g in separate.values())), rel=1e-5)
    assert_same_gradients(packed, separate)


@pytest.mark.parametrize(("document_mask", "window"), [(True, 0), (False, 4), (True, 4)], ids=["documents", "window", "both"])
@pytest.mark.parametrize("layout", [Layout(micro_batch=3), Layout(cp=2, micro_batch=3)], ids=["serial", "cp2"])
def test_masked_attention_equals_plain_torch(layout, document_mask, window, tmp_path):
    """Logits, loss and gradients, with the mask as a matrix of every query and key, and torch's own mean over the targets."""
    spec, job = tiny(tied=True, window=window), section(tmp_path, document_mask=document_mask, optimizer=OptimizerSection())
    ids, targets, seen = dense_batch(open_dataset(job.data, Path(), tmp_path, VOCAB), job, window)
    weights = {t.name: initial(t, tp_chunk(t, 1, 0), job.seed).requires_grad_() for t in spec.tensors()}
    logits = reference.logits(spec, weights, ids, seen)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        chunk, mine = rank.chunks[0], positions_of(mesh.cp, SEQ_LEN, mesh.device)
        with torch.no_grad():
            outs = [(m.ids.shape, chunk(m.ids, len(m.ids), m.seq, m.documents)) for m in rank._batch()]
            ours = torch.cat([chunk.head.logits(y).unflatten(0, shape) for shape, y in outs])
        torch.testing.assert_close(ours, logits[:, mine].detach(), rtol=1e-4, atol=1e-5)
        report, _ = rank.step(drain=False)
        return report, gradients_of(rank)

    for report, gradients in run_ranks(cut(spec, layout), body):
        assert report.loss == pytest.approx(loss.item(), rel=1e-5)
        assert_same_gradients(gradients, {name: w.grad for name, w in weights.items()}, tolerance=2e-5)


def dense_batch(dataset, job, window):
    """Ids and targets of the first step, and which keys each query sees [B, S, S]."""
    ids, targets = (torch.from_numpy(a.copy()) for a in dataset.batch(range(job.global_batch)))
    place = torch.arange(SEQ_LEN)
    seen = (place <= place[:, None])[None].repeat(job.global_batch, 1, 1)
    if window:
        seen &= place > place[:, None] - window
    for k in range(job.global_batch if job.data.document_mask else 0):
        for start in dataset.starts(k).tolist():
            seen[k, start:, :start] = False
            targets[k, start - 1 : start] = IGNORED
    return ids, targets, seen


def masked(monkeypatch, positions):
    """From here on no target counts at some positions of each sample in turn, and the tokens behind are documents of their own."""
    samples = [np.array([p + 1 for p in where]) for where in positions]
    monkeypatch.setattr(Dataset, "starts", lambda dataset, k: samples[k % len(samples)])


def step(layout, job):
    """What the ranks report of a step, and whether each has any target that counts."""
    spec = MODELS["llama"]

    def body(mesh):
        rank = make_rank(spec, job, mesh)
        counts = any(m.counted for m in rank._batch())
        report, _ = rank.step(drain=False)
        assert all(bool(p.data.isfinite().all()) for p in rank.optimizer.tensors())
        return (report.loss, report.grad_norm), counts

    return run_ranks(cut(spec, layout), body)


@pytest.mark.parametrize("layout", [Layout(dp=2), Layout(dp=2, zero=1), Layout(dp=2, tp=2, sp=True), Layout(dp=2, pp=2)], ids=str)
def test_a_replica_that_holds_only_masked_tokens_adds_nothing(layout, tmp_path, monkeypatch):
    """The loss of such a rank was 0 / 0 elsewhere (Megatron-LM#1764)."""
    masked(monkeypatch, [(2, 7), range(SEQ_LEN)])
    assert_equals_one_device(layout, section(tmp_path, global_batch=2, document_mask=True))


@pytest.mark.parametrize("method", ["ring", "gather"])
def test_a_cp_rank_that_holds_only_masked_tokens_adds_nothing(method, tmp_path, monkeypatch):
    """Rank 1 of two holds positions 3 to 8 of 12."""
    masked(monkeypatch, [range(3, 9)])
    assert_equals_one_device(Layout(cp=2, cp_method=method), section(tmp_path, global_batch=2, document_mask=True))


def assert_equals_one_device(layout, job):
    ((expected, _),) = step(Layout(micro_batch=2), job)
    results = step(layout, job)
    assert {counts for _, counts in results} == {True, False}, "a rank has nothing that counts"
    for got, _ in results:
        assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2)], ids=str)
def test_a_batch_without_any_target_is_refused_on_every_rank(layout, tmp_path, monkeypatch):
    masked(monkeypatch, [range(SEQ_LEN)])
    job = section(tmp_path, global_batch=2, document_mask=True)

    def body(mesh):
        with pytest.raises(DataError, match="no token of step 1 is followed by another one of its document, so there is nothing"):
            make_rank(MODELS["llama"], job, mesh).step(drain=False)

    run_ranks(cut(MODELS["llama"], layout), body)


def test_without_masks_no_bit_changes(tmp_path, monkeypatch):
    """The mean over what counts is then the mean over all: a factor of exactly 1."""
    corrections = []
    known = rank_module._correction
    monkeypatch.setattr(rank_module, "_correction", lambda *a: corrections.append(known(*a)) or corrections[-1])
    train(MODELS["llama"], Layout(dp=3, micro_batch=2), section(tmp_path))
    assert set(corrections) == {1.0}


def test_bf16_under_cp2_follows_serial(tmp_path):
    """Documents under a window, whose mask is in bf16 too."""
    runs = []
    for name, layout in (("serial", Layout(micro_batch=8)), ("cut", Layout(cp=2, tp=2, sp=True, micro_batch=2))):
        (tmp_path / name).mkdir()
        runs.append(train(MODELS["window"], layout, section(tmp_path / name, document_mask=True, precision="bf16")))
    for cut_loss, whole_loss in zip(runs[1].losses, runs[0].losses, strict=True):
        assert cut_loss == pytest.approx(whole_loss, rel=2e-3)
