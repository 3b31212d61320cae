"""Attention tile by tile equals attention under one mask of the whole sequence, on one rank; parity tests extend that to cp."""

import pytest
import torch
import torch.nn.functional as F

from rayplane.model import tiles as module
from rayplane.model.context import Context, attend, mask_of
from rayplane.model.window import band
from rayplane.spec.layout import Layout
from rayplane.train.threads import run_ranks

SHAPES = [(12, 3, 4), (13, 5, 4), (9, 8, 2), (8, 2, 8), (20, 6, 7), (5, 1, 2)]
DOCUMENTS = ((0, 4), (0, 4), (0, 1, 2))
CASES = [(*shape, documents) for shape in SHAPES for documents in (None, DOCUMENTS)] + [(13, 0, 1024, DOCUMENTS)]
SERVES = torch.tensor([0, 0, 1])
"""Three query heads on two KV heads."""


def tiled(q, k, v, window, documents, method, kept=None):
    """What a rank alone computes; what autograd keeps of it goes into a list."""
    seq = q.shape[2]

    def body(mesh):
        edges = band(window, seq, q.dtype, q.device) if 0 < window < seq else None
        context = Context(mesh.cp, seq, mask_of(mesh.cp, seq, documents, window, edges), SERVES)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t if kept is not None else t, lambda t: t):
            return attend(q, k, v, context, method)

    return run_ranks(Layout(), body)[0]


def one_mask(q, k, v, window, documents):
    seq = q.shape[2]
    inside = torch.ones(len(q), 1, seq, seq, dtype=torch.bool).tril()
    if window:
        inside = inside.triu(1 - window)
    for sample, starts in enumerate(documents or ()):
        for start in starts:
            inside[sample, :, start:, :start] = False
    return F.scaled_dot_product_attention(q, k[:, SERVES], v[:, SERVES], inside)


@pytest.mark.parametrize("method", ["ring", "gather"])
@pytest.mark.parametrize(("seq", "window", "rows", "documents"), CASES)
def test_tiles_equal_one_mask(seq, window, rows, documents, method, monkeypatch):
    monkeypatch.setattr(module, "ROWS", rows)
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, heads, seq, 4, requires_grad=True) for heads in (3, 2, 2))
    grad = torch.randn(3, 3, seq, 4)
    got = tiled(q, k, v, window, documents, method)
    got_grads = torch.autograd.grad(got, (q, k, v), grad)
    expected = one_mask(q, k, v, window, documents)
    torch.testing.assert_close(got, expected)
    for ours, theirs in zip(got_grads, torch.autograd.grad(expected, (q, k, v), grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_documents_that_fill_their_samples_need_no_tiles():
    def body(mesh):
        return mask_of(mesh.cp, 8, ((0,), (0,)), 8, None), mask_of(mesh.cp, 8, ((0,), (0, 7)), 0, None)

    ((whole, cut),) = run_ranks(Layout(), body)
    assert whole is None
    assert [len(t) for t in cut.tiles] == [3]


def test_no_mask_of_the_whole_sequence_is_made():
    assert band(64, 100_000, torch.float32, torch.device("cpu")).shape == (128, 128 + 63)
    assert band(4096, 100_000, torch.float32, torch.device("cpu")).shape == (1024, 1024 + 4095)


def test_backward_keeps_queries_keys_values_and_the_result_once(monkeypatch):
    """The strips overlap in keys, and no copy or mask of one is kept."""
    monkeypatch.setattr(module, "ROWS", 16)
    q, k, v = (torch.randn(1, heads, 64, 4, requires_grad=True) for heads in (3, 2, 2))
    kept = []
    tiled(q, k, v, 5, None, "gather", kept)
    assert sum(t.numel() for t in kept) == (3 + 2 + 2 + 3) * 64 * 4 + 3 * 64
