"""Attention in strips equals attention under one mask of the whole sequence."""

import pytest
import torch
import torch.nn.functional as F

from rayplane.model import window as module
from rayplane.model.window import band, window_attention

SHAPES = [(12, 3, 4), (13, 5, 4), (9, 8, 2), (8, 2, 8), (20, 6, 7), (5, 1, 2)]


@pytest.mark.parametrize(("seq", "window", "rows"), SHAPES)
def test_strips_equal_one_mask(seq, window, rows, monkeypatch):
    monkeypatch.setattr(module, "ROWS", rows)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, seq, 4, requires_grad=True) for _ in range(3))
    grad = torch.randn(2, 3, seq, 4)
    got = window_attention(q, k, v, band(window, seq, q.dtype, q.device))
    got_grads = torch.autograd.grad(got, (q, k, v), grad)
    inside = torch.ones(seq, seq, dtype=torch.bool).tril().triu(1 - window)
    expected = F.scaled_dot_product_attention(q, k, v, inside)
    torch.testing.assert_close(got, expected)
    for ours, theirs in zip(got_grads, torch.autograd.grad(expected, (q, k, v), grad), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_mask_of_the_whole_sequence_is_made():
    assert band(64, 100_000, torch.float32, torch.device("cpu")).shape == (module.ROWS, module.ROWS + 63)


def test_what_backward_keeps_of_the_mask_is_views_of_the_one_band(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 16)
    mask = band(5, 64, torch.float32, torch.device("cpu"))
    q, k, v = (torch.randn(1, 1, 64, 4, requires_grad=True) for _ in range(3))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        window_attention(q, k, v, mask)
    masks = [t for t in kept if t.shape[-1] >= 16 and t.shape[-2] == 16]
    assert len(masks) == 4
    assert {t.untyped_storage().data_ptr() for t in masks} == {mask.untyped_storage().data_ptr()}
