"""A tile's attention and gradients, by the fused kernel of this machine and written out, against softmax by its definition."""

import math

import pytest
import torch

from rayplane.model import dense as dense_module
from rayplane.model.dense import dense, dense_backward
from rayplane.model.flash import flash, flash_backward
from rayplane.model.tiles import Tile
from rayplane.model.window import band

WINDOW = 6
SHAPES = {
    "all keys": (5, 9, -1, -1),
    "up to the query": (7, 7, -1, 0),
    "at both edges": (8, 13, WINDOW - 1, 0),
    "near edge, keys before the window's end": (5, 8, WINDOW - 1, 0),
    "far edge only": (4, 5, WINDOW - 1 - 3, 3),
}


def tile(queries, keys, left, right):
    return Tile(slice(None), slice(0, queries), slice(0, keys), left, right, diagonal=False)


def by_definition(q, k, v, left, right):
    rows, columns = q.shape[2], k.shape[2]
    distance = torch.arange(columns) - torch.arange(rows)[:, None] - (columns - rows)
    hidden = torch.zeros(rows, columns, dtype=torch.bool)
    hidden |= (distance < -left) & (left >= 0)
    hidden |= (distance > right) & (right >= 0)
    scores = (torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("how", ["fused", "dense"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_tile_equals_softmax_by_definition(shape, how, monkeypatch):
    monkeypatch.setattr(dense_module, "ROWS", 3)
    queries, keys, left, right = SHAPES[shape]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (queries, keys, keys))
    dout = torch.randn(2, 3, queries, 8)
    expected, expected_lse = by_definition(q, k, v, left, right)
    grads = torch.autograd.grad(expected, (q, k, v), dout)
    inputs = [x.detach() for x in (dout, q, k, v, expected, expected_lse)]
    if how == "fused":
        edges, of = band(WINDOW, 16, q.dtype, q.device), tile(*SHAPES[shape])
        out, lse = flash(*inputs[1:4], of, edges)
        got = flash_backward(inputs, of, edges)
    else:
        out, lse = dense(*inputs[1:4], left, right)
        got = dense_backward(inputs, left, right)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    for ours, theirs in zip(got, grads, strict=True):
        torch.testing.assert_close(ours, theirs)
